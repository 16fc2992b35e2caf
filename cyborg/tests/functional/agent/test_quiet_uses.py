# SPDX-License-Identifier: Apache-2.0
"""A use by the host that shows no address, no mount and no holder keeps a function from guests."""

from __future__ import annotations

import pytest

from cyborg.agent import discovery
from cyborg.drivers import pci, registry
from cyborg.drivers.nvme import nvmf_spdk, spdk_disks
from cyborg.drivers.pci import host_use
from cyborg.tests.contract import passes
from cyborg.tests.spdk_server import HOST, SpdkServer

PORTS = '[nic_driver]\ndevice_spec = {"vendor_id": "8086"}\n'
DISKS = '[nvme]\ndevice_spec = {"vendor_id": "144d"}\n'
MEMORY = '[pci]\ndevice_spec = {"vendor_id": "1b00"}\n'
#: By the drivers that could offer a function: their options.
OPTIONS = {"nic_driver": PORTS, "nvme_driver": DISKS, "pci_driver": MEMORY, "accel_driver": ""}


def reasons() -> dict[str, str | None]:
    functions = pci.scan()
    return {name: pci.reason_to_keep(each, functions) for name, each in functions.items()}


def addresses(devices):
    return {
        pci.join(handle.attach_info)
        for device in devices
        for part in device.deployables
        for handle in part.attach_handles
    }


def offered(simulated, driver):
    (only,) = simulated.call(passes.run, [driver], OPTIONS[driver])
    assert only.errors == {}
    return addresses(only.devices[driver])


def hide_interfaces(simulated, vf):
    path = f"{simulated.path(vf)}/net"
    for name in simulated.files.names(path):
        simulated.files.drop(f"{path}/{name}")
    if simulated.files.path(path).exists():
        simulated.files.path(path).rmdir()


def test_an_interface_or_rdma_device_in_another_network_namespace_is_in_use(simulate):
    simulated = simulate({"cards": [{"card": "x710", "vfs": 5}]})
    lent, rdma, rdma_alone, bare, free = simulated.vfs(simulated.card("x710"))
    for vf in (lent, rdma, bare):
        hide_interfaces(simulated, vf)
    simulated.files.directory(f"{simulated.path(lent)}/net")
    for vf in (rdma, rdma_alone):
        simulated.files.directory(f"{simulated.path(vf)}/infiniband")

    said = simulated.call(reasons)

    for vf in (lent, rdma):
        assert "in another network namespace" in said[vf]
    assert "its RDMA device is in another" in said[rdma_alone]
    # A driver that makes no interface, and one that is bound for guests, leave no folder.
    assert offered(simulated, "nic_driver") == {bare, free}


def a_pass(held):
    """What is offered of the ports of a host, if requests have these functions."""
    conf = '[nic_driver]\ndevice_spec = {"vendor_id": "15b3"}\n'
    drivers = registry.load(passes.configured(conf, ["nic_driver"], "host-1")).drivers
    uses = host_use.Uses(used={}, held=frozenset(held))
    found = discovery.Discovery("host-1", drivers, timeout=60, look=lambda *_: uses).run()
    return addresses(found.devices["nic_driver"])


def test_what_a_request_has_stays_though_its_interface_is_lent_to_a_pod(simulate):
    simulated = simulate({"cards": [{"card": "connectx6", "vfs": 2}]})
    lent, free = simulated.vfs(simulated.card("connectx6"))
    hide_interfaces(simulated, lent)
    simulated.files.directory(f"{simulated.path(lent)}/net")

    assert simulated.call(a_pass, [lent]) == {lent, free}
    assert simulated.call(a_pass, []) == {free}


def uio(simulated, name, place=""):
    """A driver shows programs of the host this function, or a part of it."""
    made = f"{simulated.path(simulated.card(name))}{place}/uio/uio0"
    simulated.files.put(f"{made}/name", "x")
    simulated.files.link("class/uio/uio0", made)


@pytest.mark.parametrize(
    ("card", "owner"), [("nvme-pm1733", "nvme_driver"), ("ai100", "accel_driver")]
)
def test_a_driver_for_programs_of_the_host_is_a_use(simulate, card, owner):
    drivers = ["uio_pci_generic", "igb_uio", "someones"]
    cards = [{"card": card, "driver": driver, "name": driver} for driver in drivers]
    simulated = simulate({"cards": [*cards, {"card": card, "name": "free"}]})
    uio(simulated, "someones")

    said = simulated.call(reasons)

    for driver in drivers:
        sentence = f"its driver {driver} is for programs of the host"
        assert sentence in said[simulated.card(driver)]
    assert offered(simulated, owner) == {simulated.card("free")}


def test_a_part_of_a_function_for_programs_of_the_host_does_not_take_the_function(simulate):
    simulated = simulate({"cards": [{"card": "ai100", "driver": "someones", "name": "card"}]})
    uio(simulated, "card", "/region0/part.1")

    assert offered(simulated, "accel_driver") == {simulated.card("card")}


CXL = {
    "id": "1b00:c001",
    "subsystem": "1b00:0000",
    "class": "050210",
    "driver": "cxl_pci",
    "module": {"name": "cxl_pci"},
}


@pytest.mark.parametrize(
    ("region", "commit", "is_used"),
    [("region0", "1", True), ("region0", None, True), ("region0", "0", False), ("", None, False)],
)
def test_memory_that_the_host_has_as_its_own_is_in_use(simulate, region, commit, is_used):
    simulated = simulate({"cards": [{"card": "nvme-pm1733", **CXL, "nodes": None, "sriov": None}]})
    address = simulated.card("nvme-pm1733")
    memory, end = f"{simulated.path(address)}/mem0", "devices/platform/ACPI0017:00/root0/endpoint2"
    files = simulated.files
    files.put(f"{memory}/ram/size", "0x1000000000")
    files.put(f"{end}/decoder2.0/region", region)
    files.link(f"{end}/uport", memory)
    files.link("bus/cxl/devices/endpoint2", end)
    files.directory("devices/platform/ACPI0017:00/root0/region0")
    files.link("bus/cxl/devices/region0", "devices/platform/ACPI0017:00/root0/region0")
    if commit is not None:
        files.put("devices/platform/ACPI0017:00/root0/region0/commit", commit)

    said = simulated.call(reasons)[address]

    assert (said is not None and "CXL region0" in said) == is_used
    assert offered(simulated, "pci_driver") == (set() if is_used else {address})


@pytest.mark.parametrize(
    ("path", "device", "is_used"),
    [
        ("nvmet/subsystems/nqn.x/namespaces/1/device_path", "/dev/{disk}", True),
        ("nvmet/subsystems/nqn.x/passthru/device_path", "/dev/{controller}", True),
        ("target/core/iblock_0/one/udev_path", "/dev/{disk}", True),
        ("nvmet/subsystems/nqn.x/namespaces/1/device_path", "(null)", False),
        ("nvmet/subsystems/nqn.x/namespaces/1/device_path", "/srv/{disk}", False),
    ],
)
def test_a_disk_that_the_kernel_shows_over_the_network_is_in_use(simulate, path, device, is_used):
    simulated = simulate({"cards": ["nvme-pm1733"]})
    address = simulated.card("nvme-pm1733")
    place = f"{simulated.path(address)}/nvme"
    (controller,) = simulated.files.names(place)
    names = simulated.files.names(f"{place}/{controller}")
    disk = next(name for name in names if name.startswith(f"{controller}n"))
    said = device.format(disk=disk, controller=controller)
    simulated.files.put(f"kernel/config/{path}", said)

    assert offered(simulated, "nvme_driver") == (set() if is_used else {address})
    reason = simulated.call(reasons)[address]
    shown = {"NVMe-oF subsystem nqn.x", "SCSI target iblock_0/one"}
    assert (reason in {f"the host uses it for {each}" for each in shown}) == is_used


@pytest.mark.parametrize("folder", ["nvmet/subsystems", "target/core"])
def test_a_target_that_cannot_be_read_leaves_no_disk_free(simulate, folder):
    simulated = simulate({"cards": ["nvme-pm1733"]})
    place = simulated.files.path(f"kernel/config/{folder}")
    place.parent.mkdir(parents=True)
    place.symlink_to("nowhere")

    (only,) = simulated.call(passes.run, ["nvme_driver"], DISKS)

    assert only.devices["nvme_driver"] == ()
    assert simulated.card("nvme-pm1733") in only.unread


@pytest.fixture
def target(tmp_path):
    server = SpdkServer(tmp_path / "spdk.sock")
    yield server
    server.stop()


def spdk(conf, address):
    conf.set_override("rpc_address", address, group="nvmf_spdk")
    conf.set_override("host_nqn", HOST, group="nvmf_spdk")
    return nvmf_spdk.NvmfSpdkDriver(conf)


def functions(*addresses):
    return pci.Snapshot(
        pci.Function(
            address=each,
            vendor="144d",
            device="a824",
            subsystem_vendor="144d",
            subsystem_device="a801",
            class_code="010802",
        )
        for each in addresses
    )


def test_a_disk_of_our_own_target_is_not_given_out_as_a_function_too(conf, target, tmp_path):
    conf.set_override("state_path", str(tmp_path))
    places = ["0000:5e:00.0", "0000:5f:00.0", "0000:60:00.0"]
    first, second, *_rest = target.bdevs
    first["driver_specific"] = {"nvme": [{"pci_address": "0000:5E:00.0"}]}
    trid = {"trtype": "PCIe", "traddr": places[1]}
    second["driver_specific"] = {"nvme": {"trid": trid, "ctrlr_data": {}}}
    driver = spdk(conf, target.address)
    seen = functions(*places)
    assert driver.exactness(seen) == {}
    list(driver.discover(discovery.HostView("host-1", {}, match_timeout=1)))
    driver.remember()
    target.stop()

    restarted = spdk(conf, target.address)

    assert restarted.exactness(seen).keys() == set(places[:2])
    assert "bdev Nvme0n1" in restarted.why_not_offered(seen[places[0]], seen).reason
    assert restarted.why_not_offered(seen[places[2]], seen) is None


def test_the_disks_of_a_target_elsewhere_are_not_those_of_this_host():
    bdevs = [{"name": "a", "driver_specific": {"nvme": [{"pci_address": "0000:5e:00.0"}]}}]
    assert spdk_disks.of("192.0.2.1:5260", bdevs) == {}
    assert spdk_disks.of("127.0.0.1:5260", bdevs) == {"0000:5e:00.0": "a"}
