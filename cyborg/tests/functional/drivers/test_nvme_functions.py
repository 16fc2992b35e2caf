# SPDX-License-Identifier: Apache-2.0
"""Virtual functions of an NVMe controller are given out, and each is erased alone."""

from __future__ import annotations

from typing import Any

from cyborg.drivers import pci
from cyborg.tests.contract import passes
from cyborg.tests.found_cards import found, names, whys

SECTORS = 3750748848
CONTROLLER, NAMESPACE = "nvme/nvme1{vf}", "nvme/nvme1{vf}/nvme1{vf}n1"


def spec(keys: str = ', "functions": "virtual"', vendor: str = '"vendor_id": "144d"') -> str:
    return f"[nvme]\ndevice_spec = {{{vendor}{keys}}}\n"


def card(wwid: str = "eui.0{vf}", **sriov: Any) -> dict[str, Any]:
    """A controller with two virtual functions, each with a namespace."""
    block = {"size": SECTORS, "nsid": 1, "removable": 0, "ro": 0, "wwid": wwid}
    nodes = {
        CONTROLLER: {
            "subsystem": "nvme",
            "attributes": {"model": "{product}", "state": "live", "subsysnqn": "nqn.the-disk"},
            "uevent": {"MAJOR": "241", "MINOR": "1{vf}", "DEVNAME": "nvme1{vf}"},
            "links": {"device": "."},
        },
        NAMESPACE: {
            "subsystem": "block",
            "attributes": block,
            "uevent": {"MAJOR": "259", "MINOR": "1{vf}", "DEVNAME": "nvme1{vf}n1"},
            "directories": ["holders", "slaves"],
            "links": {"device": CONTROLLER},
        },
    }
    virtual = {"total": 32, "id": "144d:a824", "driver": "nvme", "nodes": nodes, **sriov}
    pf = {"nvme/nvme{n}": {"attributes": {"subsysnqn": "nqn.the-disk"}}}
    return {"card": "nvme-pm1733", "name": "disk", "vfs": 2, "sriov": virtual, "nodes": pf}


def test_each_virtual_function_is_a_device_if_the_operator_says_so(simulate):
    simulated = simulate({"cards": [card()]})
    disk = simulated.card("disk")
    vfs = simulated.vfs(disk)

    # An object that names the controller by its address is for its functions too.
    for text in (spec(), spec(vendor=f'"address": "{disk}"')):
        devices = found(simulated, "nvme_driver", text)

        assert names(devices) == [f"host-1_{vf}" for vf in vfs]
        assert [device.unhealthy for device in devices] == [None, None]
        parts = [device.deployables[0] for device in devices]
        assert all(each.cleans and each.clean_erases for each in parts)
        assert {each.attributes["capacity_mib"] for each in parts} == {SECTORS // 2048}
    assert found(simulated, "nvme_driver", spec("")) == ()
    # One that stays with the host is not given out.
    first, second = vfs
    excluded = f'device_spec = {{"address": "{first}", "exclude": true}}\n'
    devices = found(simulated, "nvme_driver", spec() + excluded)
    ordered = found(simulated, "nvme_driver", f"[nvme]\n{excluded}{spec().partition(chr(10))[2]}")
    assert names(devices) == [f"host-1_{first}", f"host-1_{second}"]
    assert names(ordered) == [f"host-1_{second}"]


def test_functions_that_have_one_namespace_are_given_to_nobody(simulate):
    """What cannot be erased alone is refused."""
    other = {"card": "nvme-pm1733", "name": "other"}
    simulated = simulate({"cards": [card(wwid="eui.01"), other]})
    both = " and ".join(simulated.vfs(simulated.card("disk")))

    devices = found(simulated, "nvme_driver", spec())

    shared = f"NVMe controllers {both} have namespace eui.01: detach it from one"
    assert [device.unhealthy for device in devices] == [shared] * 2
    wanted = spec(', "functions": "virtual", "clear_action": "sanitize"')
    assert simulated.call(whys, "nvme_driver", wanted)[simulated.card("disk")][0] == (
        "a virtual function cannot sanitize itself alone: the whole disk is erased"
    )
    assert simulated.call(whys, "nvme_driver", spec())[simulated.card("other")][0] == (
        "its virtual functions are to be offered, and it has none"
    )


def erase(address: str, keys: str) -> str:
    return passes.clean("nvme_driver", spec(f', "functions": "virtual"{keys}'), address)


def erase_whole(address: str) -> str:
    return passes.clean("nvme_driver", spec(""), address)


def test_only_the_namespaces_of_the_function_are_erased(simulate_live):
    # It says that it can sanitize itself, by which others would lose what they have.
    host = simulate_live({"cards": [card(sanitize={"can": ["crypto", "block"]})]})
    # A guest had it whole; before it was erased, virtual functions were made and given out.
    assert "its virtual functions are enabled" in host.call(erase_whole, host.card("disk"))
    links = host.device(host.card("disk")).glob("virtfn*")
    _first, second = sorted(link.readlink().name for link in links)

    told = host.call(erase, second, ', "clear_action": "sanitize"')
    assert "it would take what guests have on the rest of the disk" in told
    assert host.writes() == []
    assert host.call(erase, second, "") == ""
    assert host.writes() == [("/dev/nvme11n1", f"zero 0 {SECTORS * 512}")]


def test_a_function_that_the_hosts_driver_could_not_start_is_unhealthy(simulate):
    simulated = simulate({"cards": [card()]})
    disk = simulated.card("disk")
    offline, _sound = simulated.vfs(disk)
    simulated.detach(offline)

    def sick() -> set[str]:
        (only,) = simulated.call(passes.run, ["nvme_driver"], spec())
        devices = only.devices["nvme_driver"]
        assert len(devices) == 2
        return {pci.join(each.control_path.cpid_info) for each in devices if each.unhealthy}

    assert sick() == {offline}
    # One that was kept from that driver looks so too, and is ready for a guest.
    simulated.files.put(f"{simulated.path(offline)}/driver_override", "vfio-pci")
    assert sick() == set()
    simulated.files.put(f"{simulated.path(offline)}/driver_override", "(null)")
    simulated.files.put(f"{simulated.path(disk)}/sriov_drivers_autoprobe", "0")
    assert sick() == set()
