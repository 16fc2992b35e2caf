# SPDX-License-Identifier: Apache-2.0
"""The PCI walk over a fabricated sysfs."""

from __future__ import annotations

import dataclasses

import pytest

from cyborg.drivers import pci
from cyborg.tests.pci_functions import function

HOST = {
    "cards": [
        {"card": "console", "address": "0000:02:00.0", "numa": -1},
        {"card": "a100", "address": "0000:09:00.0", "numa": 0, "vfs": 2},
        {
            "card": "x710",
            "address": "0001:81:1f.7",
            "numa": 1,
            "nodes": {"net/second": {"subsystem": "net"}},
        },
    ]
}
INTELS = {"vendor": "8086", "subsystem_vendor": "8086", "subsystem_device": "0000"}
ASPEEDS = {"vendor": "1a03", "subsystem_vendor": "1a03", "subsystem_device": "2000"}
PORT = function(
    "0000:01:00.0", device="2030", class_code="060400", driver="pcieport", iommu_group="0", **INTELS
)
CONSOLE = function(
    "0000:02:00.0",
    **{**ASPEEDS, "device": "2000", "class_code": "030000", "driver": "ast"},
    iommu_group="1",
    boot_vga=True,
)
VF_NAMES = ("0000:09:00.4", "0000:09:00.5")
GPU = function(
    "0000:09:00.0", driver="nvidia", numa_node=0, iommu_group="3", sriov_totalvfs=16, vfs=VF_NAMES
)
VFS = [
    dataclasses.replace(
        GPU, address=address, pf=GPU.address, vfs=(), sriov_totalvfs=0, iommu_group=group
    )
    for address, group in zip(GPU.vfs, ("4", "5"), strict=True)
]
NIC = function(
    "0001:81:1f.7",
    **{**INTELS, "device": "1572", "class_code": "020000", "driver": "i40e"},
    numa_node=1,
    iommu_group="7",
    sriov_totalvfs=64,
    netdevs=("ens3f0", "second"),
)
PORTS = [
    PORT,
    dataclasses.replace(PORT, address="0000:08:00.0", numa_node=0, iommu_group="2"),
    dataclasses.replace(PORT, address="0001:80:00.0", numa_node=1, iommu_group="6"),
]
EVERYTHING = [CONSOLE, GPU, *VFS, NIC, *PORTS]


@pytest.fixture
def host(simulate):
    return simulate(HOST)


def scan() -> tuple[dict[str, pci.Function], dict[str, str]]:
    found = pci.scan()
    return dict(found), dict(found.faults)


def scan_error() -> str:
    try:
        pci.scan()
    except OSError as exc:
        return str(exc)
    return "no error"


def test_every_fact_is_read_as_it_is(host):
    functions, faults = host.call(scan)

    assert functions == {each.address: each for each in EVERYTHING}
    assert list(functions) == sorted(functions)
    assert faults == {}


def test_an_absent_sysfs_is_an_error_not_an_empty_host(simulator, tmp_path):
    (tmp_path / "sys").mkdir()
    assert "sysfs is not mounted" in simulator.call(tmp_path, scan_error)
    # A host without PCI has no functions.
    bus = tmp_path / "sys/bus"
    bus.mkdir()
    assert simulator.call(tmp_path, scan) == ({}, {})
    # A bus without its list is none such.
    (bus / "pci").mkdir()
    assert "/sys/bus/pci/devices" in simulator.call(tmp_path, scan_error)
    (bus / "pci/devices").symlink_to("nowhere")
    assert "/sys/bus/pci/devices" in simulator.call(tmp_path, scan_error)


@pytest.mark.parametrize("break_it", ["put", "unlink"])
def test_a_function_that_cannot_be_read_is_a_fault_not_a_gone_one(host, break_it):
    uevent = f"{host.path(NIC.address)}/uevent"
    host.files.put(uevent, "") if break_it == "put" else host.files.unlink(uevent)

    functions, faults = host.call(scan)

    assert functions == {each.address: each for each in EVERYTHING if each is not NIC}
    (fault,) = faults.items()
    assert fault[0] == NIC.address
    assert f"{NIC.address}/uevent cannot be read" in fault[1]


@pytest.mark.parametrize("broken", [GPU, VFS[0]])
def test_a_card_of_which_a_part_cannot_be_read_is_not_known(host, broken):
    host.files.put(f"{host.path(broken.address)}/numa_node", "near")

    functions, faults = host.call(scan)

    assert faults.keys() == {GPU.address, *GPU.vfs}
    assert all(f"{broken.address}/numa_node cannot be read" in each for each in faults.values())
    assert functions.keys() == {each.address for each in (CONSOLE, NIC, *PORTS)}
