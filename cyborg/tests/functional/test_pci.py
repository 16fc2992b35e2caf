# SPDX-License-Identifier: Apache-2.0
"""The PCI walk by an unmodified pyudev over a fabricated sysfs."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys

import pytest
from oslo_config import cfg

from cyborg import conf as cyborg_conf
from cyborg.agent import discovery
from cyborg.drivers import pci, registry
from cyborg.tests import sysfs

PORT = pci.Function(
    address="0000:08:00.0",
    vendor="8086",
    device="2030",
    subsystem_vendor="0000",
    subsystem_device="0000",
    class_code="060400",
    driver="pcieport",
)
GPU = pci.Function(
    address="0000:09:00.0",
    vendor="10de",
    device="20f1",
    subsystem_vendor="10de",
    subsystem_device="145f",
    class_code="030200",
    driver="nvidia",
    numa_node=0,
    iommu_group="1",
    sriov_totalvfs=16,
    vfs=("0000:09:00.4", "0000:09:00.5"),
)
VFS = [
    dataclasses.replace(GPU, address=address, pf=GPU.address, vfs=(), sriov_totalvfs=0, driver=None)
    for address in GPU.vfs
]
NIC = pci.Function(
    address="0001:81:1f.7",
    vendor="8086",
    device="1572",
    subsystem_vendor="8086",
    subsystem_device="0000",
    class_code="020000",
    driver="i40e",
    numa_node=1,
    iommu_group="2",
    netdevs=("ens1f0", "ens1f1"),
)
CONSOLE = pci.Function(
    address="0000:02:00.0",
    vendor="1a03",
    device="2000",
    subsystem_vendor="1a03",
    subsystem_device="2000",
    class_code="030000",
    boot_vga=True,
)
EVERYTHING = [CONSOLE, PORT, GPU, *VFS, NIC]


@pytest.fixture(scope="module")
def machine():
    with sysfs.machine() as child:
        yield child


@pytest.fixture
def tree(tmp_path):
    return sysfs.build(tmp_path, EVERYTHING)


def scan() -> dict[str, pci.Function]:
    return dict(pci.scan())


def scan_error() -> str:
    try:
        pci.scan()
    except OSError as exc:
        return str(exc)
    return "no error"


def started_by_second_pass(settings: dict[str, str]) -> tuple[list[str], list[str]]:
    """Names of deployables of the second pass, and the child processes that it started."""
    started: list[str] = []
    watching = False

    def watch(event: str, arguments: object) -> None:
        if watching and event in {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"}:
            started.append(event)

    sys.addaudithook(watch)
    conf = cfg.ConfigOpts()
    cyborg_conf.register(conf)
    conf(args=[], default_config_files=[], default_config_dirs=[])
    conf.set_override("host", "host-1")
    conf.set_override("enabled_drivers", ["pci_driver", "fake_driver"], group="agent")
    conf.set_override("device_spec", [json.dumps(settings)], group="pci")
    passes = discovery.Discovery("host-1", registry.load(conf).drivers, timeout=60)
    passes.run()
    watching = True
    found = passes.run()
    watching = False
    assert found.errors == {}
    return [
        deployable.name
        for devices in found.devices.values()
        for device in devices
        for deployable in device.deployables
    ], started


def test_every_fact_is_read_as_it_is(machine, tree):
    functions = machine.call(tree, scan)

    assert functions == {function.address: function for function in EVERYTHING}
    assert list(functions) == sorted(functions)


def test_a_new_walk_sees_what_has_changed(machine, tree, tmp_path_factory):
    machine.call(tree, scan)
    unbound = dataclasses.replace(NIC, driver="vfio-pci", netdevs=())
    changed = sysfs.build(tmp_path_factory.mktemp("changed"), [GPU, *VFS, unbound])

    assert machine.call(changed, scan) == {each.address: each for each in [GPU, *VFS, unbound]}


def test_a_function_that_is_unplugged_is_absent(machine, tree):
    sysfs.remove(tree, NIC.address)

    assert NIC.address not in machine.call(tree, scan)


def test_a_host_without_pci_has_no_functions(machine, tmp_path):
    (tmp_path / "sys/bus").mkdir(parents=True)

    assert machine.call(tmp_path, scan) == {}


def test_an_absent_sysfs_is_an_error_not_an_empty_host(machine, tmp_path):
    (tmp_path / "sys").mkdir()

    assert "sysfs is not mounted" in machine.call(tmp_path, scan_error)


def test_a_function_that_cannot_be_read_is_an_error_not_a_gone_one(machine, tree):
    uevent = tree / f"sys/devices/pci0001:81/{NIC.address}/uevent"
    uevent.write_text("")

    assert NIC.address in machine.call(tree, scan_error)


def test_a_function_that_udev_overlooks_is_an_error_not_a_gone_one(machine, tree):
    shutil.rmtree(tree / f"sys/devices/pci0001:81/{NIC.address}")
    (tree / f"sys/devices/pci0001:81/{NIC.address}").mkdir()

    assert NIC.address in machine.call(tree, scan_error)


def test_a_pass_of_the_real_drivers_starts_no_child_process(machine, tree):
    names, started = machine.call(tree, started_by_second_pass, {"vendor_id": "10de"})

    assert names == [
        "host-1_0000:09:00.4",
        "host-1_0000:09:00.5",
        "host-1_FakeDevice",
    ]
    assert started == []
