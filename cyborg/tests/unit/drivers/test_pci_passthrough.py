# SPDX-License-Identifier: Apache-2.0
"""pci_driver: what is offered, and as what."""

from __future__ import annotations

import json

import pytest

from cyborg.drivers import base, pci
from cyborg.drivers.pci import passthrough
from cyborg.tests.contract import driver as contract
from cyborg.tests.pci_functions import PF, VFS, function

BRIDGE = function("0000:08:00.0", vendor="8086", device="2030", class_code="060400")
CONSOLE = function("0000:02:00.0", class_code="030000", boot_vga=True)
T4 = function("0000:0c:00.0", device="1eb8", numa_node=1, driver="vfio-pci")
FAR_AWAY = function("10000:01:00.0", device="1eb8")
EVERYTHING = [BRIDGE, CONSOLE, PF, *VFS, T4, FAR_AWAY]


def listed(conf, *specs: object) -> None:
    conf.set_override("device_spec", [json.dumps(spec) for spec in specs], group="pci")


def discover(conf, functions=EVERYTHING) -> dict[str, base.Device]:
    driver = passthrough.PciPassthroughDriver(conf)
    found = driver.discover(contract.host_with(functions))
    return {device.deployables[0].name: device for device in found}


class UnreadableHost:
    name = "host-1"
    foreign: frozenset[str] = frozenset()

    @property
    def pci(self) -> pci.Snapshot:
        raise OSError("sysfs is not mounted")


def test_a_walk_that_failed_is_never_an_empty_host(conf):
    # Nothing is read where nothing is listed.
    assert list(passthrough.PciPassthroughDriver(conf).discover(UnreadableHost())) == []
    listed(conf, {})
    driver = passthrough.PciPassthroughDriver(conf)

    with pytest.raises(OSError, match="sysfs is not mounted"):
        list(driver.discover(UnreadableHost()))


def test_the_hosts_own_functions_and_cards_beside_their_parts_are_not_offered(conf, caplog):
    caplog.set_level("INFO")
    listed(conf, {})

    found = discover(conf)

    assert set(found) == {f"host-1_{each.address}" for each in (*VFS, T4)}
    for address in (BRIDGE.address, CONSOLE.address, FAR_AWAY.address):
        assert f"PCI device {address} is not offered" in caplog.text
    assert f"{PF.address} is not offered: its virtual functions are" in caplog.text
    # A virtual function names its physical one.
    assert found[f"host-1_{VFS[0].address}"].deployables[0].attributes == {
        "dev_type": "type-VF",
        "parent_addr": PF.address,
        "pci_address": VFS[0].address,
    }
    # That is offered when it has none.
    (device,) = discover(conf, [function(PF.address, sriov_totalvfs=8)]).values()
    assert device.deployables[0].name == f"host-1_{PF.address}"
    assert device.deployables[0].attributes["dev_type"] == "type-PF"


def test_a_whole_device(conf):
    listed(conf, {"product_id": "1eb8"})

    device = discover(conf)["host-1_0000:0c:00.0"]

    place = {"domain": "0000", "bus": "0c", "device": "00", "function": "0"}
    assert (device.type, device.vendor, device.model) == ("PCI", "10de", "1eb8")
    assert device.control_path == base.ControlPath(cpid_type="PCI", cpid_info=place)
    assert json.loads(device.std_board_info or "") == {
        "product_id": "1eb8",
        "class": "030200",
        "subsystem_vendor_id": "10de",
        "subsystem_id": "145f",
    }
    (deployable,) = device.deployables
    assert deployable == base.Deployable(
        name="host-1_0000:0c:00.0",
        resource_class="CUSTOM_PCI",
        num_accelerators=1,
        attach_handles=(base.AttachHandle(attach_type="PCI", attach_info=place),),
        traits=(
            "OWNER_CYBORG",
            "CUSTOM_PCI_NVIDIA",
            "CUSTOM_PCI_PRODUCT_ID_1EB8",
            "CUSTOM_NUMA_NODE_1",
        ),
        attributes={"dev_type": "type-PCI", "numa_node": 1, "pci_address": "0000:0c:00.0"},
    )
    # The tags of a spec are on its devices.
    listed(conf, {"product_id": "1eb8", "resource_class": "pgpu", "traits": "gold,OWNER_CYBORG"})
    (tagged,) = discover(conf)["host-1_0000:0c:00.0"].deployables
    assert tagged.resource_class == "PGPU"
    assert tagged.traits == (*deployable.traits[:3], "CUSTOM_GOLD", "CUSTOM_NUMA_NODE_1")


def test_the_trait_of_an_unknown_vendor_has_its_id(conf):
    listed(conf, {})

    (device,) = discover(conf, [function("0000:01:00.0", vendor="abcd", device="00ff")]).values()

    assert device.deployables[0].traits[1:] == (
        "CUSTOM_PCI_ABCD",
        "CUSTOM_PCI_PRODUCT_ID_00FF",
    )


def test_upstreams_name_of_the_option_works(tmp_path, conf):
    path = tmp_path / "cyborg.conf"
    path.write_text('[pci]\npassthrough_whitelist = {"product_id": "1eb8"}\n')
    conf(args=[], default_config_files=[str(path)])

    assert set(discover(conf)) == {"host-1_0000:0c:00.0"}


def test_an_address_is_split_as_nova_wants_it():
    parts = {"domain": "10000", "bus": "0c", "device": "1f", "function": "7"}
    assert list(pci.split("10000:0c:1f.7").items()) == list(parts.items())
