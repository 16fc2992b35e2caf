# SPDX-License-Identifier: Apache-2.0
"""What the base class of PCI drivers decides, on hosts with facts given by the test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from cyborg.drivers import base, pci
from cyborg.drivers.intel import gpu
from cyborg.drivers.nvme import controllers
from cyborg.tests.contract import driver as contract
from cyborg.tests.pci_functions import function


class Cards(pci.PciDriver):
    match = (pci.Match(vendor="10de", class_code="03*"),)
    type = "GPU"
    resource_class = "PGPU"
    group = "gpu_devices"


class Parts(Cards):
    expose = "vfs"


class Slots(Cards):
    expose = "slot"


class Each(Cards):
    expose = "each"


class Network(Cards):
    match = (pci.Match(vendor="10de"),)


PF = function("0000:09:00.0", sriov_totalvfs=8, vfs=("0000:09:00.4", "0000:09:00.5"))
BARE = replace(PF, vfs=())
VFS = [function(address, device="20f2", pf=PF.address) for address in PF.vfs]
LONE = function("0000:0c:00.0", sriov_totalvfs=8)


def names(driver: base.Driver, host: contract.Host) -> list[str]:
    return [
        deployable.name.removeprefix("host-1_")
        for device in driver.discover(host)
        for deployable in device.deployables
    ]


def listed(driver: type[pci.PciDriver], conf, *specs: Mapping[str, object]) -> pci.PciDriver:
    conf.set_override("device_spec", [json.dumps(spec) for spec in specs], group=driver.group)
    return driver(conf)


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        (pci.Match(), True),
        (pci.Match(vendor="10de"), True),
        (pci.Match(vendor="10df"), False),
        (pci.Match(class_code="0302*"), True),
        (pci.Match(class_code="0300*"), False),
        (pci.Match(device="20f[0-3]"), True),
        (pci.Match(device="20f[2-3]"), False),
        (pci.Match(vendor="10de", subsystem_device="145f"), True),
        (pci.Match(vendor="10de", subsystem_vendor="145f"), False),
    ],
)
def test_every_field_of_a_match_must_fit(match, fits):
    assert match.fits(PF) is fits


def test_the_match_that_fixes_more_digits_is_the_more_exact():
    matches = [{}, {"vendor": "10de", "class_code": "03*"}, {"vendor": "10de", "device": "20f1"}]
    assert [pci.Match(**each).digits for each in matches] == [0, 6, 8]


@pytest.mark.parametrize("kind", [Cards, Slots])
def test_a_card_is_not_given_whole_while_it_has_virtual_functions(conf, kind):
    driver, host = kind(conf), contract.host_with([PF, *VFS, LONE])

    assert [each.removesuffix(".0") for each in names(driver, host)] == ["0000:0c:00"]
    why = driver.why_not_offered(PF, host.pci)
    assert why is not None
    assert why.reason == "its virtual functions are enabled"
    assert "sriov_numvfs" in why.remedy


def test_virtual_functions_or_the_card_while_it_has_none(conf):
    host = contract.host_with([PF, *VFS, LONE])

    (card, lone) = Parts(conf).discover(host)

    assert [each.name for each in card.deployables] == [f"host-1_{vf}" for vf in PF.vfs]
    assert card.control_path.cpid_info == pci.split(PF.address)
    assert [each.name for each in lone.deployables] == [f"host-1_{LONE.address}"]


def test_the_functions_of_a_slot_are_one_accelerator(conf):
    """It is given whole or not at all."""
    second = function("0000:0c:00.1")

    (device,) = Slots(conf).discover(contract.host_with([LONE, second]))

    (deployable,) = device.deployables
    assert deployable.num_accelerators == 1
    given = [pci.join(each.attach_info) for each in deployable.attach_handles]
    assert given == [LONE.address, second.address]
    console = replace(second, boot_vga=True)
    assert names(Slots(conf), contract.host_with([LONE, console])) == []


@pytest.mark.parametrize(
    ("specs", "offered"),
    [
        ([], [PF.address, LONE.address]),
        ([{"address": LONE.address}], [LONE.address]),
        ([{"address": LONE.address, "exclude": True}], [PF.address]),
        ([{"address": LONE.address, "exclude": "true"}, {}], [PF.address]),
        ([{"vendor_id": "8086"}], []),
    ],
)
def test_the_operator_narrows_what_is_taken(conf, specs, offered):
    assert names(listed(Cards, conf, *specs), contract.host_with([BARE, LONE])) == offered


def test_the_operators_tags_are_on_the_device(conf):
    driver = listed(
        Cards, conf, {"resource_class": "gold", "traits": "silver", "type": "AICHIP"}
    )
    (device,) = driver.discover(contract.host_with([LONE]))
    assert device.type == "AICHIP"
    assert device.deployables[0].resource_class == "CUSTOM_GOLD"
    assert "CUSTOM_SILVER" in device.deployables[0].traits
    with pytest.raises(ValueError, match=r"\[gpu_devices\] device_spec .*exclude must be true or"):
        listed(Cards, conf, {"exclude": 1})


@pytest.mark.parametrize(
    ("foreign", "offered"),
    [([LONE.address, VFS[0].address], [VFS[1].address]), ([PF.address, LONE.address], [])],
)
def test_what_another_driver_means_more_exactly_is_left_to_it(conf, foreign, offered):
    host = replace(contract.host_with([PF, *VFS, LONE]), foreign=frozenset(foreign))

    assert names(Parts(conf), host) == offered


@pytest.mark.parametrize(
    ("address", "path", "reason"),
    [
        (PF.address, "mdev_supported_types/nvidia-222/devices/b1c5e0f0", "it is divided: it has m"),
        (VFS[1].address, "mdev_supported_types/nvidia-474/devices/b1c5e0f0", "in use: it has med"),
        (VFS[1].address, "nvidia/current_vgpu_type", "in use: it has vGPU type 1137"),
    ],
)
def test_a_card_is_not_given_whole_while_it_is_divided(conf, caplog, address, path, reason):
    """The operator may have changed the options since guests were given parts of it."""
    caplog.set_level("INFO")
    functions = [replace(each, driver="nvidia") for each in (PF, *VFS)]

    shown = {address: {path: "1137"}}
    assert names(Cards(conf), contract.host_with(functions, shown)) == []
    assert reason in caplog.text
    assert names(Cards(conf), contract.host_with([BARE])) == [PF.address]
    # A virtual function that the operator gave a type may be given out.
    if "current_vgpu_type" in path:
        assert names(Each(conf), contract.host_with(functions, shown)) == list(PF.vfs)


def test_a_card_is_not_given_whole_while_a_part_of_it_is_not_to_be_given(conf, caplog):
    """Another driver has it, the operator keeps it, or the host uses it."""
    caplog.set_level("INFO")
    whole, part = contract.host_with([PF, *VFS]), VFS[0].address
    foreign = replace(whole, foreign=frozenset({part}))

    assert names(Cards(conf), foreign) == []
    assert f"its virtual function {part} is another driver's" in caplog.text
    keeping = listed(Cards, conf, {"address": part, "exclude": True})
    assert names(keeping, whole) == []
    assert names(keeping, contract.host_with([BARE])) == [PF.address]
    nic = replace(VFS[0], class_code="020000")
    used = {nic.address: "the host's network interface ens1 is on it"}
    assert names(listed(Network, conf), contract.host_with([PF, nic, VFS[1]], used=used)) == []


def test_what_the_host_uses_is_kept_and_the_reason_is_told_once(conf, caplog):
    caplog.set_level("INFO")
    nic = function("0000:0d:00.0", vendor="10de", class_code="020000")
    used = {nic.address: "the host's network interface ens1 is on it"}
    driver = Network(conf)
    for _ in range(2):
        assert names(driver, contract.host_with([LONE, nic], used=used)) == [LONE.address]
    assert caplog.text.count(f"{nic.address} is not offered: {used[nic.address]}") == 1


def test_a_virtual_function_that_vanishes_takes_no_other_along(conf):
    files = contract.Files({})
    files.vanished = {VFS[0].address}
    host = contract.Host(pci=contract.snapshot([PF, *VFS], files))

    class Curious(Parts):
        def attributes(self, function, functions):
            return {"word": functions.text(function.address, "word")}

    assert names(Curious(conf), host) == [VFS[1].address]


def test_facts_are_attributes_and_traits(conf):
    card = function("0000:0c:00.0", numa_node=1)
    files = contract.Files(
        {
            card.address: {
                "current_link_speed": "2.5 GT/s PCIe",
                "current_link_width": 8,
                "max_link_speed": "16.0 GT/s PCIe",
                "max_link_width": 16,
                "../max_link_speed": "8.0 GT/s PCIe",
                "../max_link_width": 16,
                "serial_number": "00-11",
                "reset_method": "flr bus",
            }
        }
    )
    files.products = {"10de:20f1": "A100 PCIe 40GB"}

    (device,) = Cards(conf).discover(contract.Host(pci=contract.snapshot([card], files)))

    (deployable,) = device.deployables
    assert device.model == "A100 PCIe 40GB"
    assert deployable.attributes == {
        "numa_node": 1,
        "pci_address": card.address,
        "product": "A100 PCIe 40GB",
        "link": "8.0 GT/s x8",
        "serial": "00-11",
        "reset_methods": "flr bus",
    }
    assert {"CUSTOM_NUMA_NODE_1", "CUSTOM_PRODUCT_A100_PCIE_40GB"} <= set(deployable.traits)


BY_ID = {"vendor_id": "10de", "product_id": "20f2"}
FIRST_VF = {"address": PF.vfs[0]}


@pytest.mark.parametrize(
    ("specs", "offered"),
    [
        ([BY_ID], [*PF.vfs]),
        ([FIRST_VF], [PF.vfs[0]]),
        ([{"address": "0000:09:00.[45]"}], [*PF.vfs]),
        ([{"address": PF.address, "product_id": "20f2"}], [*PF.vfs]),
        ([{**FIRST_VF, "exclude": True}, BY_ID], [PF.vfs[1]]),
        ([{**FIRST_VF, "exclude": True}], [PF.vfs[1]]),
        ([{"product_id": "20f1", "exclude": True}, FIRST_VF], [PF.vfs[0]]),
        ([{"product_id": "20f1", "exclude": True}], []),
        # Both forms, of which one says more of one part.
        ([FIRST_VF, {"address": PF.address}], [*PF.vfs]),
    ],
)
def test_a_list_of_virtual_functions_leaves_the_card_with_the_host(conf, specs, offered):
    driver = listed(Parts, conf, *specs)
    host = contract.host_with([PF, *VFS])

    assert names(driver, host) == offered
    assert driver.unmatched(host.pci) == []


def test_a_listed_virtual_function_has_the_class_of_its_own_object(conf):
    tagged = {**FIRST_VF, "resource_class": "CUSTOM_PART"}
    driver = listed(Parts, conf, tagged, {"product_id": "20f1", "traits": "CUSTOM_CARD"})
    (device,) = driver.discover(contract.host_with([PF, *VFS]))

    own, of_card = device.deployables
    assert (own.resource_class, of_card.resource_class) == ("CUSTOM_PART", "PGPU")
    assert ("CUSTOM_CARD" in own.traits, "CUSTOM_CARD" in of_card.traits) == (False, True)


def test_a_virtual_function_that_only_whole_cards_could_be_is_refused_aloud(conf):
    driver = listed(Cards, conf, BY_ID)
    host = contract.host_with([PF, *VFS])

    assert names(driver, host) == []

    for vf in VFS:
        why = driver.why_not_offered(vf, host.pci)
        assert why is not None
        assert "whole cards" in why.reason
        assert "pci_driver" in why.remedy


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ([{"vendor_id": "10de"}, {"vendor_id": "8086"}], ["Object 2", "matches nothing"]),
        ([{"vendor_id": "10de"}, BY_ID], ["Object 2", "only 0000:09:00.4 and 1 more", "before"]),
        ([{}, {"address": "0000:ff:00.0", "exclude": True}], ["Object 2", "matches nothing"]),
        ([{"address": "0000:0d:00.0"}], ["Object 1", "only 0000:0d:00.0", "does not know it"]),
    ],
)
def test_an_object_of_the_list_that_selects_nothing_is_told(conf, specs, said):
    other = function("0000:0d:00.0", class_code="020000")
    driver = listed(Parts, conf, *specs)
    host = contract.host_with([PF, *VFS, other])
    names(driver, host)

    (sentence,) = driver.unmatched(host.pci)

    assert "[gpu_devices] device_spec" in sentence
    for words in said:
        assert words in sentence


BOOT = function("0000:0e:00.0", boot_vga=True, driver="vfio-pci")
FAR = function("10000:01:00.0")


@pytest.mark.parametrize(
    ("card", "specs", "offered"),
    [
        (BOOT, [], False),
        (BOOT, [{"address": BOOT.address}], True),
        (replace(BOOT, driver="nvidia"), [{"address": BOOT.address}], False),
        (FAR, [], False),
        (FAR, [{"vendor_id": "10de"}], False),
        (FAR, [{"address": FAR.address}], True),
        (FAR, [{"address": {"domain": "10000"}}], True),
        (FAR, [{"address": "*:01:00.0"}], False),
    ],
)
def test_what_the_operator_lists_lifts_two_rules(conf, card, specs, offered):
    driver = listed(Cards, conf, *specs)
    host = contract.host_with([card])

    assert names(driver, host) == [card.address] * offered

    why = driver.why_not_offered(card, host.pci)
    assert offered or (why is not None and "[gpu_devices] device_spec" in why.remedy)


@pytest.mark.parametrize(
    ("driver", "is_in_the_way"),
    [
        (None, False),
        ("vfio-pci", False),
        ("mlx5_vfio_pci", False),
        ("pci-stub", False),
        ("pci-pf-stub", True),
        ("igb_uio", True),
        ("uio_pci_generic", True),
        ("xen-pciback", True),
        ("snd_hda_intel", True),
    ],
)
def test_the_driver_of_another_function_decides_about_their_group(conf, driver, is_in_the_way):
    card = replace(LONE, iommu_group="7")
    other = function("0000:0c:00.1", class_code="040300", driver=driver, iommu_group="7")

    offered = names(Cards(conf), contract.host_with([card, other]))

    assert offered == [] if is_in_the_way else [card.address]


def test_processors_graphics_are_offered_if_they_are_meant(conf):
    """In a guest that has guests of its own, cards are on the bus of the processor, too."""
    card = function("0000:00:05.0", vendor="8086", device="56c0", class_code="038000")
    host = contract.host_with([card])
    by_vendor = listed(gpu.IntelGpuDriver, conf, {"vendor_id": "8086"})

    assert names(by_vendor, host) == []
    why = by_vendor.why_not_offered(card, host.pci)
    assert why is not None
    assert "[intel_gpu_driver] device_spec with its product_id" in why.remedy

    by_id = listed(gpu.IntelGpuDriver, conf, {"vendor_id": "8086", "product_id": "56c0"})
    assert names(by_id, host) == [card.address]
    assert by_id.why_not_offered(card, host.pci) is None


def test_a_controllers_parts_are_offered_if_the_list_names_those(conf):
    vfs = ("0000:70:00.1", "0000:70:00.2")
    card = function("0000:70:00.0", vendor="144d", class_code="010802", vfs=vfs)
    parts = [replace(card, address=vf, pf=card.address, vfs=()) for vf in card.vfs]

    driver = listed(controllers.NvmeDriver, conf, {"address": parts[1].address})

    assert names(driver, contract.host_with([card, *parts])) == [parts[1].address]
