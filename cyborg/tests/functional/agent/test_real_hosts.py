# SPDX-License-Identifier: Apache-2.0
"""What hosts of today show in sysfs and older ones did not."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from cyborg.drivers import pci
from cyborg.drivers.nvidia import vgpu_types
from cyborg.drivers.pci import product_names
from cyborg.tests.contract import passes
from cyborg.tests.found_cards import found, in_one_group, names, twice, whys

GIB = 1024
#: As on an L40S: the product's name does not say how much memory it has.
L40S = {
    "card": "h100",
    "id": "10de:26b9",
    "subsystem": "10de:1851",
    "product": "NVIDIA L40S",
    "sriov": {"id": "10de:26b9"},
    "vgpu": {
        "types": {
            "1132": None,
            "1137": None,
            "1138": None,
            "1155": {"name": "NVIDIA L40S-12C", "max": 4},
            "1157": {"name": "NVIDIA L40S-24C", "max": 2},
            "1158": {"name": "NVIDIA L40S-48C", "max": 1},
        }
    },
}
GPU = ["nvidia_gpu_driver"]


def divided(number: str) -> str:
    return f"[gpu_devices]\nenabled_vgpu_types = {number}\n"


def _without_product_names(function: Callable[..., Any], *arguments: Any) -> Any:
    paths, product_names.PATHS = product_names.PATHS, ()
    try:
        return function(*arguments)
    finally:
        product_names.PATHS = paths


def test_parts_fit_a_card_whose_name_says_no_size(simulate):
    simulated = simulate({"cards": [{**L40S, "vfs": 16}]})

    for number, fitting in (("1158", 1), ("1157", 2), ("1155", 4)):
        (only,) = simulated.call(_without_product_names, passes.run, GPU, divided(number))
        assert len(names(only.devices["nvidia_gpu_driver"])) == fitting

    # If it is not known how many fit beside those in use, one more is offered.
    first, second, *_others = simulated.vfs(simulated.card("h100"))
    simulated.write(f"{simulated.path(second)}/nvidia/current_vgpu_type", "1155")
    (only,) = simulated.call(_without_product_names, passes.run, GPU, divided("1155"))
    assert names(only.devices["nvidia_gpu_driver"]) == [f"host-1_{first}", f"host-1_{second}"]


VENDORS_LIST = """<?xml version="1.0" encoding="UTF-8"?>
<vgpuconfig>
  <vgpuType id="1158" name="NVIDIA L40S-48C" class="Compute"/>
  <vgpuType id="1157" name="NVIDIA L40S-24C" class="Compute"/>
  <pgpu>
    <devId vendorId="0x10de" deviceId="0x26B9" subsystemVendorId="0x10de" subsystemId="0x0"/>
    <supportedVgpu vgpuId="1157"><maxVgpus>3</maxVgpus></supportedVgpu>
    <supportedVgpu vgpuId="1158"><maxVgpus>1</maxVgpus></supportedVgpu>
  </pgpu>
</vgpuconfig>
"""


def _with_vendors_list(path: str, text: str) -> list[passes.Pass]:
    before = vgpu_types.VENDORS_LIST
    vgpu_types.VENDORS_LIST = pathlib.Path(path)
    try:
        found: list[passes.Pass] = _without_product_names(passes.run, GPU, text)
        return found
    finally:
        vgpu_types.VENDORS_LIST = before


@pytest.mark.parametrize(
    ("content", "offered"), [(VENDORS_LIST, 3), ("<pgpu>", 2), ("", 2)], ids=["whole", "cut", ""]
)
def test_the_vendors_list_says_how_many_fit_and_a_broken_one_does_no_harm(
    simulate, tmp_path, content, offered
):
    simulated = simulate({"cards": [{**L40S, "vfs": 4}, {**L40S, "vfs": 2, "name": "taken"}]})
    vfs, (taken, _) = (simulated.vfs(simulated.card(name)) for name in ("h100", "taken"))
    simulated.write(f"{simulated.path(vfs[0])}/nvidia/current_vgpu_type", "1157")
    simulated.write(f"{simulated.path(taken)}/nvidia/current_vgpu_type", "1158")
    path = tmp_path / "vgpuConfig.xml"
    path.write_text(content)

    (only,) = simulated.call(_with_vendors_list, str(path), divided("1157"))

    found_here = {f"host-1_{vf}" for vf in vfs} & set(names(only.devices["nvidia_gpu_driver"]))
    assert len(found_here) == offered
    if content == VENDORS_LIST:
        # It names types that no card shows.
        (only,) = simulated.call(_with_vendors_list, str(path), divided("1158"))
        parts = [part for each in only.devices["nvidia_gpu_driver"] for part in each.deployables]
        (part,) = [part for part in parts if part.name == f"host-1_{taken}"]
        assert "CUSTOM_NVIDIA_26B9_L40S_48C" in part.traits
        assert part.attributes["memory_mib"] == 48 * GIB


def test_types_of_a_card_that_is_taken_are_known_to_the_next_agent(simulate, tmp_path):
    simulated = simulate({"cards": [{**L40S, "vfs": 4}]})
    vfs = [f"/sys/{simulated.path(vf)}/nvidia" for vf in simulated.vfs(simulated.card("h100"))]
    text = f"[DEFAULT]\nstate_path = {tmp_path}\n{divided('1158')}"
    given = {f"{vfs[0]}/current_vgpu_type": "1158"}
    given |= {f"{vf}/creatable_vgpu_types": "" for vf in vfs}

    before, after = simulated.call(_without_product_names, twice, *GPU, text, given)

    assert [each.deployables for each in before] == [each.deployables for each in after]
    ((part,),) = (device.deployables for device in after)
    assert "CUSTOM_NVIDIA_26B9_L40S_48C" in part.traits
    assert part.attributes["memory_mib"] == 48 * GIB


def test_facts_that_cannot_be_read_or_written_do_no_harm(simulate, tmp_path):
    simulated = simulate({"cards": [{**L40S, "vfs": 4}]})
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts/gpu_devices.json").write_text("[")
    (tmp_path / "facts/gpu_devices.new").mkdir()
    text = f"[DEFAULT]\nstate_path = {tmp_path}\n{divided('1158')}"

    before, _after = simulated.call(_without_product_names, twice, *GPU, text, {})

    assert len(before) == 1


def test_a_card_whose_virtual_functions_have_no_driver_yet_is_not_whole(simulate):
    simulated = simulate({"cards": [{**L40S, "vfs": 2, "sriov": {"driver": None}}, "t4"]})

    (only,) = simulated.call(passes.run, GPU, divided("1158"))

    assert names(only.devices["nvidia_gpu_driver"]) == [f"host-1_{simulated.card('t4')}"]
    assert "its virtual functions have no driver yet" in only.errors["nvidia_gpu_driver"]


NVSWITCH = {
    "card": "t4",
    "name": "nvswitch",
    "id": "10de:22a3",
    "class": "068000",
    "driver": "nvidia-nvswitch",
    "mdev": None,
}


def test_the_switch_of_a_board_can_be_given_to_a_guest_and_a_bridge_cannot(simulate):
    simulated = simulate({"cards": [NVSWITCH]})
    text = '[pci]\ndevice_spec = [{"vendor_id": "10de"}, {"vendor_id": "8086"}]\n'

    assert names(found(simulated, "pci_driver", text)) == [f"host-1_{simulated.card('nvswitch')}"]
    # Nor one of another kind.
    path = f"{simulated.path(simulated.card('nvswitch'))}/config"
    config = bytearray(simulated.files.path(path).read_bytes())
    config[0x0E] = 0x81
    simulated.files.put(path, bytes(config))

    assert found(simulated, "pci_driver", text) == ()


@pytest.mark.parametrize(
    "config", [None, b"", b"\0" * 14, b"\xff" * 256], ids=["missing", "empty", "short", "no answer"]
)
@pytest.mark.parametrize("listed", ["it", "a card of its group"])
def test_what_may_be_a_bridge_stays_as_it_was(simulate, config, listed):
    """It is not offered, nor what is in its IOMMU group, and what is known of them is not lost."""
    simulated = simulate({"cards": [NVSWITCH, "t4", "mi210"]})
    switch = simulated.card("nvswitch")
    card = switch if listed == "it" else simulated.card("t4")
    if card != switch:
        in_one_group(simulated, card, switch)
    path = f"{simulated.path(switch)}/config"
    simulated.files.unlink(path)
    if config is not None:
        simulated.files.put(path, config)
    text = f'[pci]\ndevice_spec = [{{"address": "{card}"}}, {{"vendor_id": "1002"}}]\n'

    (only,) = simulated.call(passes.run, ["pci_driver"], text)

    assert names(only.devices["pci_driver"]) == [f"host-1_{simulated.card('mi210')}"]
    assert only.unread == {card}
    assert f"{switch}/config does not tell" in only.errors["pci_driver"]


OFS = {
    "card": "n3000",
    "name": "ofs",
    "id": "8086:bcce",
    "sriov": {"total": 3, "id": "8086:bccf"},
    "functions": [
        {"id": "8086:bcce", "subsystem": "8086:0000", "class": "120000", "driver": "dfl-pci"}
        for _number in range(3)
    ],
}


#: More cards with the same regions.
SAME = {
    "8086:bcbd": "CUSTOM_FPGA_INTEL_INTEGRATED_5",
    "8086:bcc0": "CUSTOM_FPGA_INTEL_INTEGRATED_6",
    "1c2c:1000": "CUSTOM_FPGA_INTEL_PAC_N5010",
    "1c2c:1001": "CUSTOM_FPGA_INTEL_PAC_N5011",
}


def test_which_cards_are_programmed(simulate):
    # No tool knows the V80.
    v80 = {"card": "u250", "name": "v80", "id": "10ee:50b4"}
    cards = [OFS, *({"card": "n3000", "id": ids} for ids in SAME), v80, "u250"]
    simulated = simulate({"cards": cards})

    # Further functions of an OFS card are no cards.
    ofs, *same = found(simulated, "intel_fpga_driver")

    assert pci.join(ofs.control_path.cpid_info) == simulated.card("ofs")
    assert ofs.deployables[0].program_mode == "dynamic"
    for device, trait in zip(same, SAME.values(), strict=True):
        assert trait in device.deployables[0].traits
        assert device.deployables[0].program_mode == "dynamic"
    modes = [each.deployables[0].program_mode for each in found(simulated, "xilinx_fpga_driver")]
    assert modes == [None, "dynamic"]

    # Nor is a card programmed while a guest has one of its functions.
    part = f"{simulated.card('ofs')[:-1]}2"
    simulated.detach(part)
    simulated.attach(part, "vfio-pci")

    ofs, *_ = found(simulated, "intel_fpga_driver")

    assert ofs.deployables[0].program_mode is None


def test_a_virtual_function_whose_id_begins_with_0_is_told_before_it_is_linked(simulate):
    simulated = simulate(
        {"cards": [{"card": "qat-c62x", "id": "8086:0435", "sriov": {"id": "8086:0443"}}]}
    )
    simulated.enable(simulated.card("qat-c62x"), 1)
    (vf,) = simulated.vfs(simulated.card("qat-c62x"))
    simulated.files.unlink(f"{simulated.path(vf)}/physfn")

    assert simulated.call(_pf_of, vf) == simulated.card("qat-c62x")


def _pf_of(address: str) -> str | None:
    return pci.scan()[address].pf


VPD = b"\x82\x1a\x00BlueField-3 P-Series\x00 DPU  \x90\x00\x00\x78"


@pytest.mark.parametrize(
    ("driver", "card", "vpd", "spec", "model"),
    [
        ("amd_gpu_driver", "mi300x", VPD, {}, "AMD Instinct MI300X OAM"),
        ("intel_qat_driver", "qat-c62x", VPD, {}, "BlueField-3 P-Series DPU"),
        ("intel_qat_driver", "qat-c62x", VPD, {"product": "My QAT"}, "My QAT"),
        ("intel_qat_driver", "qat-c62x", b"\x82\xff", {}, "37c8"),
        ("intel_qat_driver", "qat-c62x", b"", {}, "37c8"),
    ],
)
def test_a_model_is_named_by_the_best_source(simulate, driver, card, vpd, spec, model):
    simulated = simulate({"cards": [card]})
    simulated.files.put(f"{simulated.path(simulated.card(card))}/vpd", vpd)
    text = f"[{driver}]\ndevice_spec = {json.dumps(spec)}\n" if spec else ""

    (only,) = simulated.call(_without_product_names, passes.run, [driver], text)

    (device,) = only.devices[driver]
    assert device.model == model
    assert device.deployables[0].attributes.get("product", "37c8") == model


def test_the_name_that_a_driver_shows_is_kept_while_a_guest_has_the_card(simulate, tmp_path):
    simulated = simulate({"cards": ["mi300x"]})
    text, card = f"[DEFAULT]\nstate_path = {tmp_path}\n", simulated.card("mi300x")
    name = {f"{simulated.files.root}/{simulated.path(card)}/product_name": None}

    found = simulated.call(_without_product_names, twice, "amd_gpu_driver", text, name, [card])

    assert [device.model for devices in found for device in devices] == [
        "AMD Instinct MI300X OAM"
    ] * 2


SOUND = {"id": "10de:10f0", "subsystem": "10de:12a2", "class": "040300", "driver": "snd_hda_intel"}
LISTED = '[pci]\ndevice_spec = {"vendor_id": "10de"}\n'
BOARD = '[pci]\ndevice_spec = {"vendor_id": "10de", "board": "b"}\n'


@pytest.mark.parametrize(
    ("driver", "is_free"),
    [("snd_hda_intel", False), ("vfio-pci", True), ("pci-stub", True), (None, True)],
)
def test_a_card_is_offered_only_if_its_whole_group_is_free(simulate, driver, is_free):
    """The kernel gives a group to one guest: that of another function could never start."""
    card = {"card": "t4", "mdev": None, "functions": [{**SOUND, "bound": driver}]}
    simulated = simulate({"cards": [card]})
    first = simulated.card("t4")
    in_one_group(simulated, first, f"{first[:-1]}1")
    offered = [f"host-1_{first}"] if is_free else []

    assert names(found(simulated, "nvidia_gpu_driver")) == offered
    # Of a group that is listed only the first function is offered, or all of it as a board.
    assert names(found(simulated, "pci_driver", LISTED)) == offered
    (board,) = found(simulated, "pci_driver", BOARD)
    assert len(board.deployables[0].attach_handles) == 2


def test_what_shows_a_console_is_no_accelerator(simulate):
    reasons = {
        "ES1000": "it is the screen of the server's board",
        "graphics": "it is the processor's own graphics",
    }
    display = {"card": "mi210", "class": "030000"}
    cards = [
        {**display, "name": "ES1000", "id": "1002:515e", "driver": "radeon"},
        {**display, "name": "graphics", "id": "1002:1638"},
        # Of such a class, with memory of its own.
        {**display, "name": "card", "attributes": {"mem_info_vram_vendor": "samsung"}},
    ]
    simulated = simulate({"cards": cards})
    at = {name: simulated.card(name) for name in (*reasons, "card")}

    assert names(found(simulated, "amd_gpu_driver")) == [f"host-1_{at['card']}"]
    said = simulated.call(whys, "amd_gpu_driver")
    for name, reason in reasons.items():
        assert said[at[name]][0] == reason
        listed = f'[amd_gpu_driver]\ndevice_spec = {{"address": "{at[name]}"}}\n'
        assert names(found(simulated, "amd_gpu_driver", listed)) == [f"host-1_{at[name]}"]


@pytest.mark.parametrize("listed", ["", '{"product_id": "1eb8"}'], ids=["one driver", "two"])
def test_two_guests_are_never_offered_one_group(simulate, listed):
    card = {"card": "t4", "driver": "vfio-pci", "mdev": None}
    simulated = simulate({"cards": [{**card, "name": "a"}, {**card, "name": "b"}, "t4"]})
    first, second = simulated.card("a"), simulated.card("b")
    in_one_group(simulated, first, second)
    text = f'[pci]\ndevice_spec = {{"address": "{second}"}}\n' if listed else ""

    (only,) = simulated.call(passes.run, ["nvidia_gpu_driver", "pci_driver"], text)

    offered = [name for devices in only.devices.values() for name in names(devices)]
    assert sorted(offered) == [f"host-1_{first}", f"host-1_{simulated.card('t4')}"]


def test_what_stays_with_the_host_does_not_go_along_with_its_group(simulate):
    cards = [{"card": "x710", "name": "up"}, {"card": "x710", "name": "free"}]
    simulated = simulate({"cards": cards, "default_route": "ens1f0"})
    in_one_group(simulated, simulated.card("up"), simulated.card("free"))

    assert found(simulated, "pci_driver", '[pci]\ndevice_spec = {"vendor_id": "8086"}\n') == ()


def test_a_disk_with_virtual_functions_is_not_given_whole(simulate):
    sriov = {"total": 4, "id": "144d:a824", "driver": "nvme"}
    simulated = simulate({"cards": [{"card": "nvme-pm1733", "sriov": sriov}]})
    address = simulated.card("nvme-pm1733")
    text = (
        f'[nvme]\ndevice_spec = {{"address": "{address}"}}\n'
        f'[pci]\ndevice_spec = {{"address": "{address[:-1]}1"}}\n'
    )
    assert names(found(simulated, "nvme_driver", text)) == [f"host-1_{address}"]

    simulated.enable(address, 2)

    assert found(simulated, "nvme_driver", text) == ()
    assert names(found(simulated, "pci_driver", text)) == [f"host-1_{address[:-1]}1"]


@pytest.mark.parametrize(
    ("driver", "text"),
    [
        ("mdev_driver", '[mdev]\nmdev_spec = {"mdev_type": "nvidia-230"}\n'),
        ("nvidia_gpu_driver", divided("nvidia-230")),
    ],
)
def test_a_parent_that_can_have_any_number_does_not_fill_the_memory(simulate, driver, text):
    """As much as an unsigned number can be, which is how some drivers say that they count none."""
    simulated = simulate({"cards": ["t4"]})
    kind = f"{simulated.path(simulated.card('t4'))}/mdev_supported_types/nvidia-230"
    simulated.files.put(f"{kind}/available_instances", 2**32 - 1)

    (only,) = simulated.call(passes.run, [driver], text)

    assert only.devices == {driver: ()}
    assert only.unread == {simulated.card("t4")}
    assert "There cannot be 4294967295 mediated devices" in only.errors[driver]
