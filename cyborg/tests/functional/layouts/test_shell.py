# SPDX-License-Identifier: Apache-2.0
"""A Xilinx card is given a shell: from the API to XRT's tool, and back by a report."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from cyborg.agent import discovery
from cyborg.drivers import base, privileged, registry
from cyborg.tests import layouts_site
from cyborg.tests.compute import Compute
from cyborg.tests.contract import passes
from cyborg.tests.layouts_site import LayoutsSite, StartLayouts, forget
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
TOOL = (pathlib.Path(__file__).parents[2] / "data/tools/xbmgmt.sh").read_text()


def place(partition: str) -> str:
    return f"partitions/{partition}/partition.xsabin"


def contents(name: str) -> str:
    """What is read of a partition: the name as Vivado writes it."""
    vendor, board, platform = name.split("_", 2)
    written = f"{vendor}:{board}:{platform[:-4]}:{platform[-3]}.{platform[-1]}"
    return "xclbin2\0".ljust(352, "\0") + written.ljust(200, "\0")


FILES = {place(partition): contents(name) for name, partition in PARTITIONS.items()}
DRIVER = "xilinx_fpga_driver"


def asked(fpga: LayoutsSite) -> list[str]:
    try:
        return (fpga.state / "asked").read_text().splitlines()
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


def test_a_card_is_given_a_shell_and_then_another(start_layouts: StartLayouts) -> None:
    one_stage = {"card": "u250", "name": "images"}
    fpga = start_layouts([CARD, one_stage], DRIVER, OPTIONS, FILES | {"xbmgmt": TOOL})
    card = fpga.card
    assert fpga.deployable(card)["program"]["mode"] == "layout"
    assert fpga.deployable(fpga.host.card("images"))["program"]["mode"] == "dynamic"
    assert fpga.layouts(card) == {XDMA: "1", QDMA: "1"}
    assert (fpga.layout(card), fpga.offered(card)) == (None, {"FPGA": 0})

    # That of another board is none of its layouts.
    refused = fpga.ask(card, "xilinx_u280_gen3x16_xdma_shell_1_1")
    assert refused.status_code == 400
    assert f"Its layouts are: {QDMA}, {XDMA}." in refused.text

    fpga.give(card, XDMA)

    file = fpga.state / place(PARTITIONS[XDMA])
    assert asked(fpga) == [f"--force program --device {card} --shell {file}"]
    assert fpga.deployable(card)["program"]["verified_by"] == "logic_uuids in sysfs"
    assert fpga.offered(card) == {"FPGA": 1}
    assert "CUSTOM_FPGA_SHELL_XILINX_U250_GEN3X16_XDMA_SHELL_4_1" in fpga.traits(card)

    fpga.give(card, QDMA)

    shell = "CUSTOM_FPGA_SHELL_XILINX_U250_GEN3X16_QDMA_SHELL_1_0"
    assert [trait for trait in fpga.traits(card) if "SHELL" in trait] == [shell]

    # What the tool refuses is an error.
    (fpga.state / "refuses").touch()
    assert "Shell download failed" in fpga.give_in_vain(card, XDMA)
    fpga.site.hurry(lambda: fpga.layout(card) == QDMA and fpga.site.idle())
    assert fpga.offered(card) == {"FPGA": 1}

    # What a reboot takes from nobody is recorded.
    tried = asked(fpga)
    reboot(fpga)
    fpga.site.hurry(lambda: fpga.layout(card) is None)
    assert (fpga.offered(card), asked(fpga)) == ({"FPGA": 0}, tried)


def test_a_guest_keeps_its_shell(start_layouts: StartLayouts, compute: Compute) -> None:
    fpga = start_layouts([CARD], DRIVER, OPTIONS, FILES | {"xbmgmt": TOOL})
    card, text = fpga.card, f"[DEFAULT]\nstate_path = {fpga.state}\n{OPTIONS}"
    fpga.give(card, XDMA)
    (device,) = fpga.host.call(layouts_site._discover, DRIVER, text)
    assert fpga.offered(card) == {"FPGA": 1}
    profile = compute.make_profile({**ARQ, "accel:function_id": XDMA})
    instance = "7a1c2b3d-0000-4000-8000-00000000beef"
    (arq,) = compute.boot(profile, instance)

    # It is back after a reboot.
    reboot(fpga)
    until(lambda: fpga.deployable(card)["program"]["in_doubt"])
    fpga.site.hurry(lambda: len(asked(fpga)) == 2 and fpga.site.idle())
    assert fpga.layout(card) == XDMA
    assert fpga.bound(arq["uuid"]) == arq["attach_handle_info"]
    assert fpga.last_operation()["asked_by"] == "recovery"

    # It is not changed while the guest has the card.
    fpga.host.call(give_to_guest, card)
    refused = fpga.ask(card, QDMA)
    assert (refused.status_code, arq["uuid"] in refused.text) == (409, True)
    # The agent runs no tool then, whatever a conductor asks, as for one that was started before
    # its shell was put back.
    (part,) = device.deployables
    target = base.ProgramTarget(
        deployable=part.name,
        control_path=device.control_path,
        attach_handles=part.attach_handles,
        function=QDMA,
    )
    answer = fpga.host.call(layouts_site._act, DRIVER, text, "set_layout", target)
    assert answer == ("NothingWritten", f"Card {card} shows no shell: a guest may have it")
    assert len(asked(fpga)) == 2

    # The card shows nothing now, and is of the same kind with the same record for an agent that
    # has just been started.
    fpga.host.call(forget)
    (device,) = fpga.host.call(layouts_site._discover, DRIVER, text)
    assert device.deployables[0].program_mode == "layout"
    fpga.site.hurry(fpga.site.idle)
    assert (fpga.deployable(card)["program"]["mode"], fpga.layout(card)) == ("layout", XDMA)
    assert "CUSTOM_FPGA_SHELL_XILINX_U250_GEN3X16_XDMA_SHELL_4_1" in fpga.traits(card)
    compute.delete(instance)


@pytest.mark.parametrize(("text", "offered"), [(OPTIONS, 0), ("", 1)], ids=["layouts", "images"])
def test_a_card_whose_kind_cannot_be_told_is_not_offered(simulate, tmp_path, text, offered) -> None:
    simulated = simulate({"cards": [{**CARD, "driver": "vfio-pci"}]})

    (only,) = simulated.call(
        passes.run, [DRIVER], f"[DEFAULT]\nstate_path = {tmp_path}\n{text}"
    )

    assert only.errors == {}
    assert len(only.devices[DRIVER]) == offered


def one_pass(state: pathlib.Path, partitions: pathlib.Path) -> Any:
    """What a new agent finds, and what it cannot read."""
    text = f"[DEFAULT]\nstate_path = {state}\n{OPTIONS}"
    privileged.XILINX_PARTITIONS = partitions
    conf = passes.configured(text, [DRIVER], "host-1")
    one = discovery.Discovery("host-1", registry.load(conf).drivers, timeout=60)
    findings = one.run()
    one.remember()
    return findings.devices[DRIVER], findings.unread


#: Files of a card and what is in them, or None where they cannot be read.
BROKEN = [
    ("board_name", None),
    ("logic_uuids", "nonsense"),
    ("logic_uuids", "9" * 5000),
    ("logic_uuids", None),
]


def test_cards_whose_shells_cannot_be_read_are_no_other_kind_of_cards(simulate, tmp_path) -> None:
    simulated = simulate({"cards": [CARD] * len(BROKEN)})
    cards = [simulated.card("fpga", number) for number in range(len(BROKEN))]
    for card, (name, text) in zip(cards, BROKEN, strict=True):
        file = simulated.root / "sys" / simulated.path(card) / name
        file.unlink()
        if text is None:
            file.symlink_to("/proc/self/mem")  # a read of it fails
        else:
            file.write_text(text)

    devices, unread = simulated.call(one_pass, tmp_path, tmp_path)

    assert devices == ()
    assert set(cards) <= unread


def test_a_card_stays_what_it_is_if_its_shells_are_not_installed_any_more(
    simulate: Any, tmp_path: pathlib.Path
) -> None:
    for path, text in FILES.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
    simulated = simulate({"cards": [CARD]})
    path = f"{simulated.path(simulated.card('fpga'))}/logic_uuids"
    simulated.files.put(path, f"9e7b8a3f1d5c4e60a2b47c8d9e0f1a2b\n{PARTITIONS[XDMA]}")
    ((before,), _) = simulated.call(one_pass, tmp_path, tmp_path / "partitions")

    ((after,), _) = simulated.call(one_pass, tmp_path, tmp_path / "none")

    (was,), (now,) = before.deployables, after.deployables
    assert (was.program_mode, was.function) == ("layout", XDMA)
    assert (now.program_mode, now.function, now.traits) == ("layout", XDMA, was.traits)
    assert f"layout_{XDMA}" not in now.attributes
