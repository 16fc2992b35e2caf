# SPDX-License-Identifier: Apache-2.0
"""Where devices are in the host: behind which PCIe switch, on which NUMA node."""

from __future__ import annotations

from cyborg.tests.contract import passes

NICS = '[nic_driver]\ndevice_spec = {"vendor_id": "15b3"}\n'


def test_devices_behind_one_switch_have_its_address(simulate):
    simulated = simulate("hgx")

    (only,) = simulated.call(passes.run, ["nvidia_gpu_driver", "nic_driver"], NICS)

    found = {
        driver: [device.deployables[0].attributes.get("pcie_switch") for device in devices]
        for driver, devices in only.devices.items()
    }
    first, second = "0000:01:00.0", "0000:02:00.0"
    assert found == {
        "nvidia_gpu_driver": [first, first, second, second, None],
        "nic_driver": [first, second],
    }


def test_virtual_functions_are_where_their_card_is(simulate):
    simulated = simulate({"cards": [{"card": "connectx6", "switch": 3, "vfs": 2}]})

    (only,) = simulated.call(passes.run, ["nic_driver"], NICS)

    parts = [part for device in only.devices["nic_driver"] for part in device.deployables]
    assert [part.attributes["pcie_switch"] for part in parts] == ["0000:03:00.0"] * 2
