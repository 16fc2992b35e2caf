# SPDX-License-Identifier: Apache-2.0
"""Which virtual functions of a card are virtual GPUs, when not all that have room fit on it."""

from __future__ import annotations

import errno

import pytest

from cyborg.conf import drivers as options
from cyborg.drivers.nvidia import gpu, vgpu_types
from cyborg.tests.contract import driver as contract
from cyborg.tests.pci_functions import function

PF = function(
    "0000:31:00.0",
    driver="nvidia",
    sriov_totalvfs=8,
    vfs=("0000:31:00.4", "0000:31:00.5", "0000:31:00.6"),
)
VFS = [function(address, pf=PF.address, driver="nvidia") for address in PF.vfs]
FREE = {
    "nvidia/current_vgpu_type": "0",
    "nvidia/creatable_vgpu_types": "1137 : NVIDIA H100-40C",
}
TAKEN = {"nvidia/current_vgpu_type": "1137", "nvidia/creatable_vgpu_types": ""}


@pytest.fixture
def driver(conf):
    conf.set_override("enabled_vgpu_types", ["1137"], group="gpu_devices")
    options.register_vgpu_type(conf, "1137")
    conf.set_override("max_instances", 1, group="vgpu_1137")
    return gpu.NvidiaGpuDriver(conf)


@pytest.mark.parametrize(
    ("files", "offered"),
    [((FREE, FREE, FREE), [0]), ((FREE, FREE, TAKEN), [2]), ((FREE, TAKEN, TAKEN), [1, 2])],
)
def test_none_that_a_guest_has_is_lost_to_one_that_is_free(driver, files, offered):
    host = contract.host_with([PF, *VFS], dict(zip(PF.vfs, files, strict=True)))

    names = [device.deployables[0].name for device in driver.discover(host)]

    assert names == [f"host-1_{PF.vfs[number]}" for number in offered]


class Broken(contract.Files):
    """Sysfs that shows the types, and fails to say which is set."""

    def read(self, address: str, path: str) -> str:
        if path == "nvidia/current_vgpu_type":
            raise OSError(errno.EIO, "Input/output error")
        return super().read(address, path)


def test_a_type_that_cannot_be_read_is_not_none(driver):
    files = Broken(dict.fromkeys(PF.vfs, FREE))
    host = contract.Host(pci=contract.snapshot([PF, *VFS], files))

    assert list(driver.discover(host)) == []
    (problem,) = driver.problems()
    assert f"current_vgpu_type of {PF.vfs[0]} cannot be read" in problem
    assert host.pci.unread == {PF.address, *PF.vfs}


@pytest.mark.parametrize(
    ("name", "gib", "memory_mib", "count"),
    [
        ("NVIDIA H200X-3-71C", 71, 143771, 2),
        ("NVIDIA H200X-1-18C", 18, 143771, 7),
        ("NVIDIA H100XM-2-20C", 20, 81559, 3),
        ("NVIDIA H100XM-7-80C", 80, 81559, 1),
        ("NVIDIA H100XM-1-10CME", 10, 81559, 1),
        ("NVIDIA A30-1-6C", 6, 24576, 4),
        ("NVIDIA H100XM-40C", 40, 81920, 2),
    ],
)
def test_as_many_slices_fit_as_the_card_has(driver, name, gib, memory_mib, count):
    assert driver._types.fit(PF, "1", name, memory_mib, gib * 1024) == count


SHARED = ["DC-1-12Q", "DC-1-24Q", "DC-1-8C", "DC-1-24C", "DC-2-16Q", "DC-2-48Q", "DC-4-96Q"]
ALONE = ["A100-1-5C", "A100-1-10C", "A100-1-5CME", "A100-7-40C", "A100-10C"]


@pytest.mark.parametrize(
    ("name", "known", "instance"),
    [
        ("DC-1-12Q", SHARED, (1, 24, 2)),
        ("DC-1-24Q", SHARED, (1, 24, 1)),
        ("DC-2-16Q", SHARED, (2, 48, 3)),
        ("DC-1-8C", SHARED, (1, 24, 3)),
        ("DC-1-12Q", ["DC-1-12Q"], (1, 12, 1)),
        ("A100-1-5C", ALONE, (1, 5, 1)),
        ("A100-1-5CME", ALONE, (1, 5, 1)),
        ("A100-10C", ALONE, None),
        ("A100-1-5C", [], (1, 5, 1)),
    ],
)
def test_the_instance_of_a_slice_is_that_of_the_largest_like_it(name, known, instance):
    assert vgpu_types.instance_of(name, known) == instance


def test_as_many_parts_fit_as_share_the_instances_of_a_card(driver):
    product = f"{PF.device}:{PF.subsystem_vendor}:{PF.subsystem_device}"
    for number, name in enumerate(SHARED):
        driver.kept.set("vgpu_types", f"{product} {number}", name)

    assert driver._types.fit(PF, "0", "DC-1-12Q", 96 * 1024, 12 * 1024) == 8
