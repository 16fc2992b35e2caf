# SPDX-License-Identifier: Apache-2.0
"""A Xilinx card is given a shell: from the API to XRT's tool, and back by a report."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import pytest

from cyborg.agent import discovery
from cyborg.drivers import base, privileged, registry
from cyborg.tests import layouts_site
from cyborg.tests.compute import Compute
from cyborg.tests.contract import passes
from cyborg.tests.layouts_site import VERSION, LayoutsSite, forget
from cyborg.tests.service import until

pytestmark = pytest.mark.slow

XDMA, QDMA = "xilinx_u250_gen3x16_xdma_shell_4_1", "xilinx_u250_gen3x16_qdma_shell_1_0"
#: Which of the partitions on the host is which. Of another board, and of no use for a card, is one.
PARTITIONS = {
    XDMA: "bd5fb8abab266c3265918257b5048e88",
    QDMA: "12c8fafb0632499db1c0c6676271b8a6",
    "xilinx_u280_gen3x16_xdma_shell_1_1": "5d1a3c7e9f2b4860a1b3c5d7e9f0a2b4",
}
OPTIONS = f"[xilinx_fpga_driver]\nlayouts = {', '.join(PARTITIONS)}, xilinx_u250_not_installed\n"
CARD = {"card": "u250-2rp", "name": "fpga"}
ARQ = {"resources:FPGA": "1"}
TOOL = pathlib.Path(__file__).parents[2] / "data/tools/xbmgmt.sh"


@pytest.fixture
def xrt(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "agent"
    folder.mkdir()
    shutil.copy(TOOL, folder / "xbmgmt")
    for name, partition in PARTITIONS.items():
        # The name as Vivado writes it.
        vendor, board, platform = name.split("_", 2)
        written = f"{vendor}:{board}:{platform[:-4]}:{platform[-3]}.{platform[-1]}"
        file = folder / "partitions" / partition / "partition.xsabin"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"xclbin2\0".ljust(352, b"\0") + written.encode().ljust(200, b"\0"))
    return folder


@pytest.fixture
def fpga(start_layouts: Any, xrt: pathlib.Path) -> LayoutsSite:
    assert xrt.exists()
    one: LayoutsSite = start_layouts([CARD], "xilinx_fpga_driver", OPTIONS)
    return one


def asked(xrt: pathlib.Path) -> list[str]:
    try:
        return (xrt / "asked").read_text().splitlines()
    except FileNotFoundError:
        return []


def reboot(fpga: LayoutsSite) -> None:
    """The card has its base only, and the agent of the host starts anew."""
    fpga.host.change("load_shell", fpga.card, "")
    fpga.host.call(forget)


def give_to_guest(address: str) -> None:
    """Libvirt has bound the functions of the card to the guest's driver."""
    for number in "01":
        function = pathlib.Path(f"/sys/bus/pci/devices/{address[:-1]}{number}")
        (function / "driver_override").write_text("vfio-pci")
        (function / "driver/unbind").write_text(f"{address[:-1]}{number}")
        pathlib.Path("/sys/bus/pci/drivers_probe").write_text(f"{address[:-1]}{number}")


def test_a_card_is_given_a_shell_and_then_another(fpga: LayoutsSite, xrt: pathlib.Path) -> None:
    card = fpga.card
    shown = fpga.deployable(card)
    layouts = {key: value for key, value in shown["attributes"].items() if "layout" in key}
    assert shown["program"]["mode"] == "layout"
    assert layouts == {f"layout_{XDMA}": "1", f"layout_{QDMA}": "1"}
    assert fpga.layout(card) is None
    assert fpga.offered(card) == {"FPGA": 0}

    # That of another board is none of its layouts.
    refused = fpga.ask(card, "xilinx_u280_gen3x16_xdma_shell_1_1")
    assert refused.status_code == 400
    assert f"Its layouts are: {QDMA}, {XDMA}." in refused.text

    operation = fpga.give(card, XDMA)

    assert (operation["state"], operation["error"]) == ("succeeded", None)
    file = xrt / "partitions" / PARTITIONS[XDMA] / "partition.xsabin"
    assert asked(xrt) == [f"--force program --device {card} --shell {file}"]
    assert fpga.layout(card) == XDMA
    assert fpga.deployable(card)["program"]["verified_by"] == "logic_uuids in sysfs"
    assert fpga.offered(card) == {"FPGA": 1}
    assert "CUSTOM_FPGA_SHELL_XILINX_U250_GEN3X16_XDMA_SHELL_4_1" in fpga.traits(card)

    assert fpga.give(card, QDMA)["error"] is None

    assert fpga.layout(card) == QDMA
    assert [trait for trait in fpga.traits(card) if "SHELL" in trait] == [
        "CUSTOM_FPGA_SHELL_XILINX_U250_GEN3X16_QDMA_SHELL_1_0"
    ]


def test_no_shell_is_changed_while_a_guest_has_the_card(
    fpga: LayoutsSite, xrt: pathlib.Path, compute: Compute
) -> None:
    card = fpga.card
    assert fpga.give(card, XDMA)["error"] is None
    assert fpga.offered(card) == {"FPGA": 1}
    profile = compute.make_profile({**ARQ, "accel:function_id": XDMA})
    instance = "7a1c2b3d-0000-4000-8000-00000000beef"
    arqs = compute.boot(profile, instance)
    fpga.host.call(give_to_guest, card)

    refused = fpga.ask(card, QDMA)

    assert refused.status_code == 409
    assert arqs[0]["uuid"] in refused.text
    assert len(asked(xrt)) == 1
    # The card shows nothing now, and is of the same kind with the same record for an agent that
    # has just been started.
    fpga.host.call(forget)
    text = f"[DEFAULT]\nstate_path = {xrt}\n{OPTIONS}"
    (device,) = fpga.host.call(layouts_site._discover, "xilinx_fpga_driver", text)
    assert device.deployables[0].program_mode == "layout"
    fpga.site.hurry(fpga.site.idle)
    shown = fpga.deployable(card)
    assert (shown["program"]["mode"], fpga.layout(card)) == ("layout", XDMA)
    assert "CUSTOM_FPGA_SHELL_XILINX_U250_GEN3X16_XDMA_SHELL_4_1" in fpga.traits(card)
    compute.delete(instance)


def test_the_agent_runs_no_tool_on_a_card_that_a_guest_has(
    fpga: LayoutsSite, xrt: pathlib.Path
) -> None:
    """Whatever a conductor asks, as for one that was started before its shell was put back."""
    card = fpga.card
    assert fpga.give(card, XDMA)["error"] is None
    text = f"[DEFAULT]\nstate_path = {xrt}\n{OPTIONS}"
    (device,) = fpga.host.call(layouts_site._discover, "xilinx_fpga_driver", text)
    (part,) = device.deployables
    target = base.ProgramTarget(
        deployable=part.name,
        control_path=device.control_path,
        attach_handles=part.attach_handles,
        function=QDMA,
    )
    fpga.host.call(give_to_guest, card)

    answer = fpga.host.call(
        layouts_site._act, "xilinx_fpga_driver", text, "set_layout", target
    )

    assert answer == ("NothingWritten", f"Card {card} shows no shell: a guest may have it")
    assert len(asked(xrt)) == 1


def test_a_guest_gets_its_shell_back_after_a_reboot(fpga: LayoutsSite, xrt: pathlib.Path) -> None:
    card = fpga.card
    assert fpga.give(card, XDMA)["error"] is None
    arq, _instance = fpga.arq(card, **ARQ)
    before = fpga.bound(arq)

    reboot(fpga)
    until(lambda: fpga.deployable(card)["program"]["in_doubt"])

    fpga.site.hurry(lambda: len(asked(xrt)) == 2 and fpga.site.idle())
    assert fpga.layout(card) == XDMA
    assert fpga.bound(arq) == before
    last = fpga.site.call("GET", "/operations?sort_key=id&sort_dir=desc&limit=1", version=VERSION)
    assert last["operations"][0]["asked_by"] == "recovery"


def test_what_the_tool_refuses_is_an_error_and_what_a_reboot_takes_from_nobody_is_recorded(
    fpga: LayoutsSite, xrt: pathlib.Path
) -> None:
    card = fpga.card
    assert fpga.give(card, XDMA)["error"] is None
    (xrt / "refuses").touch()

    operation = fpga.give(card, QDMA)

    assert operation["state"] == "failed"
    assert "Shell download failed" in operation["error"]
    fpga.site.hurry(lambda: fpga.layout(card) == XDMA and fpga.site.idle())
    assert fpga.offered(card) == {"FPGA": 1}

    tried = asked(xrt)
    reboot(fpga)

    fpga.site.hurry(lambda: fpga.layout(card) is None)
    assert fpga.offered(card) == {"FPGA": 0}
    assert asked(xrt) == tried


def test_a_card_of_one_stage_takes_images(start_layouts: Any, xrt: pathlib.Path) -> None:
    assert xrt.exists()
    fpga: LayoutsSite = start_layouts(
        [{"card": "u250", "name": "fpga"}], "xilinx_fpga_driver", OPTIONS
    )

    assert fpga.deployable(fpga.card)["program"]["mode"] == "dynamic"


@pytest.mark.parametrize(("text", "offered"), [(OPTIONS, 0), ("", 1)], ids=["layouts", "images"])
def test_a_card_whose_kind_cannot_be_told_is_not_offered(
    simulate: Any, tmp_path: pathlib.Path, text: str, offered: int
) -> None:
    simulated = simulate({"cards": [{**CARD, "driver": "vfio-pci"}]})

    (only,) = simulated.call(
        passes.run, ["xilinx_fpga_driver"], f"[DEFAULT]\nstate_path = {tmp_path}\n{text}"
    )

    assert only.errors == {}
    assert len(only.devices["xilinx_fpga_driver"]) == offered


def one_pass(state: pathlib.Path, partitions: pathlib.Path) -> Any:
    """What a new agent finds, and what it cannot read."""
    text = f"[DEFAULT]\nstate_path = {state}\n{OPTIONS}"
    privileged.XILINX_PARTITIONS = partitions
    conf = passes.configured(text, ["xilinx_fpga_driver"], "host-1")
    one = discovery.Discovery("host-1", registry.load(conf).drivers, timeout=60)
    findings = one.run()
    one.remember()
    return findings.devices["xilinx_fpga_driver"], findings.unread


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("board_name", None),
        ("logic_uuids", "nonsense"),
        ("logic_uuids", "9" * 5000),
        ("logic_uuids", None),
    ],
)
def test_a_card_whose_shell_cannot_be_read_is_no_other_kind_of_card(
    simulate: Any, tmp_path: pathlib.Path, file: str, text: str | None
) -> None:
    simulated = simulate({"cards": [CARD]})
    card = simulated.card("fpga")
    broken = simulated.root / "sys" / simulated.path(card) / file
    broken.unlink()
    if text is None:
        broken.symlink_to("/proc/self/mem")  # a read of it fails
    else:
        broken.write_text(text)

    devices, unread = simulated.call(one_pass, tmp_path, tmp_path)

    assert devices == ()
    assert card in unread


def test_a_card_stays_what_it_is_if_its_shells_are_not_installed_any_more(
    simulate: Any, tmp_path: pathlib.Path, xrt: pathlib.Path
) -> None:
    simulated = simulate({"cards": [CARD]})
    path = f"{simulated.path(simulated.card('fpga'))}/logic_uuids"
    simulated.files.put(path, f"9e7b8a3f1d5c4e60a2b47c8d9e0f1a2b\n{PARTITIONS[XDMA]}")
    ((before,), _) = simulated.call(one_pass, tmp_path, xrt / "partitions")

    ((after,), _) = simulated.call(one_pass, tmp_path, tmp_path / "none")

    (was,), (now,) = before.deployables, after.deployables
    assert (was.program_mode, was.function) == ("layout", XDMA)
    assert (now.program_mode, now.function, now.traits) == ("layout", XDMA, was.traits)
    assert f"layout_{XDMA}" not in now.attributes


