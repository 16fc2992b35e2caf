# SPDX-License-Identifier: Apache-2.0
"""QAT endpoints, network cards, AI processors, NVMe controllers, mediated devices, any card."""

from __future__ import annotations

import pytest

from cyborg.drivers import pci, registry
from cyborg.tests.contract import passes
from cyborg.tests.contract import simulated as contract
from cyborg.tests.found_cards import erase, found, handle, names

pytestmark = pytest.mark.slow


class TestQat(contract.SimulatedDriverContract):
    entry_point = "intel_qat_driver"
    recorded = "qat"

    def test_a_virtual_function_is_as_it_always_was(self, simulated, devices):
        address = simulated.card("qat-c62x")
        vf = simulated.vfs(address)[0]
        device = devices[0]

        assert (device.type, len(device.deployables)) == ("QAT", 4)
        assert pci.join(device.control_path.cpid_info) == address
        first = device.deployables[0]
        assert first.name == f"host-1_{vf}"
        assert (first.resource_class, first.num_accelerators) == ("CUSTOM_QAT", 1)
        assert first.attach_handles == (handle(vf),)
        # An endpoint without virtual functions is given itself.
        assert names(devices)[-1] == f"host-1_{simulated.card('qat-402xx')}"
        # One in the processor ails not for want of a link.
        assert {device.unhealthy for device in devices} == {None}
        assert "link" not in devices[3].deployables[0].attributes
        # Generation and services are traits.
        generations = [
            [trait for trait in device.deployables[0].traits if "QAT_" in trait]
            for device in devices
        ]
        assert generations == [["CUSTOM_QAT_GEN2"]] * 3 + [
            ["CUSTOM_QAT_GEN4", "CUSTOM_QAT_ASYM", "CUSTOM_QAT_SYM"]
        ] * 2 + [["CUSTOM_QAT_GEN4", "CUSTOM_QAT_DC"]]

    def test_an_endpoint_that_is_down_ails(self, changeable):
        address = changeable.card("qat-4xxx")
        changeable.files.put(f"{changeable.path(address)}/qat/state", "down")

        unhealthy = [device.unhealthy for device in found(changeable, "intel_qat_driver")]

        assert list(filter(None, unhealthy)) == [f"QAT endpoint {address} is down"]


class TestNic(contract.SimulatedDriverContract):
    entry_point = "intel_nic_driver"
    recorded = "nic"
    options = """
        [nic_devices]
        enabled_nic_types = x710_static
        [x710_static]
        physical_device_mappings = physnet1:ens2f0|ens9f0,phys-net-2:ens4f0
        function_device_mappings = GTPv1:ens2f0,not a mapping
    """

    def test_a_virtual_function_is_as_it_always_was(self, simulated, devices):
        address = simulated.card("x710")
        vf = simulated.vfs(address)[0]
        device = devices[0]

        first = device.deployables[0]
        assert (device.type, len(device.deployables)) == ("NIC", 4)
        assert pci.join(device.control_path.cpid_info) == address
        assert first.name == f"host-1_{vf}"
        assert first.resource_class == "CUSTOM_NIC"
        assert {"CUSTOM_VF", "CUSTOM_GTPV1", "CUSTOM_PHYSNET1"} <= set(first.traits)
        assert first.attach_handles == (handle(vf, physical_network="physnet1"),)
        # A port without virtual functions is given itself.
        (whole,) = devices[1].deployables
        assert whole.name == f"host-1_{simulated.card('xl710')}"
        assert "CUSTOM_PF" in whole.traits
        # A trait of a network is legal, and the network's name is kept.
        third = devices[2].deployables[0]
        assert "CUSTOM_PHYS_NET_2" in third.traits
        assert third.attach_handles[0].attach_info["physical_network"] == "phys-net-2"
        assert f"host-1_{simulated.card('uplink')}" not in names(devices)

    def test_only_the_cards_that_are_named_are_reported(self, simulated):
        address = simulated.card("e810")
        text = f"[nic_devices]\nenabled_nic_types = mine\n[mine]\ndevice_addresses = {address}\n"

        (device,) = found(simulated, "intel_nic_driver", text)

        assert pci.join(device.control_path.cpid_info) == address


class TestAscend(contract.WholeCardContract):
    entry_point = "huawei_ascend_driver"
    recorded = "ascend"
    traits = ("CUSTOM_AICHIP_HUAWEI", "CUSTOM_AICHIP_PRODUCT_ID_D100")
    always = ("ascend310", "AICHIP", "CUSTOM_AICHIP", traits)

    def test_every_generation_is_reported(self, simulated, devices):
        assert names(devices)[:5] == [
            *(f"host-1_{simulated.card('ascend310', number)}" for number in range(4)),
            f"host-1_{simulated.card('ascend910')}",
        ]
        assert len(devices[5].deployables) == 2


class TestInspurDisk(contract.WholeCardContract):
    entry_point = "inspur_nvme_ssd_driver"
    recorded = "nvme"
    traits = ("CUSTOM_SSD_INSPUR", "CUSTOM_SSD_PRODUCT_ID_1001")
    always = ("nvme-inspur", "SSD", "CUSTOM_SSD", traits)


class TestNvme(contract.SimulatedDriverContract):
    entry_point = "nvme_driver"
    recorded = "nvme"
    options = """
        [nvme]
        device_spec = {{"vendor_id": "144d"}}
    """

    def test_disks_but_those_that_the_host_runs_on_are_offered(self, simulated, devices):
        assert names(devices) == [
            *(f"host-1_{simulated.card('nvme-pm1733', number)}" for number in range(4)),
            f"host-1_{simulated.card('nvme-passthrough')}",
        ]
        attributes = devices[0].deployables[0].attributes
        assert attributes["namespaces"] == 1
        assert attributes["capacity_mib"] == 3750748848 // 2048
        assert attributes["firmware"] == "EPK9AB5Q"
        # Each disk is erased after use.
        assert all(device.deployables[0].cleans for device in devices)
        # One that need not be is not.
        text = '[nvme]\ndevice_spec = {"vendor_id": "144d", "clear_action": "none"}'
        (device, *_others) = found(simulated, "nvme_driver", text)
        assert not device.deployables[0].cleans

    def test_no_disk_is_reported_that_is_not_listed(self, simulated):
        (only,) = simulated.call(passes.run, ["nvme_driver"])

        assert only.devices == {"nvme_driver": ()}
        assert only.errors == {
            "nvme_driver": "[nvme] device_spec is not set, so the driver reports nothing"
        }

    def test_a_disk_that_the_host_uses_does_not_drive_or_does_not_list_is_never_erased(
        self, simulated
    ):
        system, passed = simulated.card("nvme-system"), simulated.card("nvme-passthrough")

        assert f"{system} is not erased: the host uses it for /" in simulated.call(erase, system)
        assert "is not bound to the host's driver nvme" in simulated.call(erase, passed)
        assert "is not on the bus" in simulated.call(erase, "0000:fe:00.0")
        assert "not in device_spec" in simulated.call(erase, simulated.card("nvme-inspur"))

    def test_a_dead_controller_ails(self, changeable, text):
        address = changeable.card("nvme-pm1733")
        (name,) = changeable.files.names(f"{changeable.path(address)}/nvme")
        changeable.files.put(f"{changeable.path(address)}/nvme/{name}/state", "dead")

        device, *others = found(changeable, "nvme_driver", text)

        assert device.unhealthy == f"NVMe controller {address} is dead"
        assert not any(each.unhealthy for each in others)


@pytest.mark.parametrize(
    ("driver", "group", "card", "volumes"),
    [
        ("nvme_driver", "nvme", "nvme-system", {"dm-0": ["nvme0n1p2"]}),
        ("nvme_driver", "nvme", "nvme-multipath", {"dm-0": ["nvme0n1"]}),
        ("pci_driver", "pci", "nvme-system", {"dm-0": ["nvme0n1p2"]}),
        ("pci_driver", "pci", "nvme-system", {"md127": ["nvme0n1p2"], "dm-0": ["md127"]}),
    ],
)
def test_a_disk_with_a_volume_is_given_to_nobody(simulate, driver, group, card, volumes):
    simulated = simulate({"cards": [card, "nvme-pm1733"], "volumes": volumes})

    first, other = found(simulated, driver, f'[{group}]\ndevice_spec = {{"vendor_id": "144d"}}')

    (disk,) = next(iter(volumes.values()))
    kind = "NVMe controller" if group == "nvme" else "PCI function"
    assert first.unhealthy == (
        f"The host has a volume or a RAID on {disk} of {kind} {simulated.card(card)}"
    )
    assert other.unhealthy is None


class TestMdev(contract.SimulatedDriverContract):
    entry_point = "mdev_driver"
    recorded = "nvidia"
    options = """
        [mdev]
        mdev_spec = {{"parent": "{t4}", "mdev_type": "nvidia-23*", "resource_class": "VGPU"}}
        mdev_spec = {{"parent": "0000:19:*", "mdev_type": "nvidia-474", "traits": "gold"}}
    """

    def test_each_parent_has_what_it_says_it_has(self, simulated, devices):
        a100, t4 = devices[0], devices[-1]

        assert len(devices) == 5
        assert a100.deployables[0].resource_class == "CUSTOM_MDEV"
        assert {"OWNER_CYBORG", "CUSTOM_MDEV_NVIDIA_474", "CUSTOM_GOLD"} <= set(
            a100.deployables[0].traits
        )
        (deployable,) = t4.deployables
        assert deployable.name == f"host-1_{simulated.card('t4')}"
        assert (deployable.resource_class, deployable.num_accelerators) == ("VGPU", 16)
        assert deployable.attach_handles[0].attach_info["asked_type"] == "nvidia-230"

    def test_a_part_in_use_is_still_offered_and_is_told_to_be_ready(
        self, changeable, text, devices
    ):
        uuid = "b1c5e0f0-6f1c-4a3e-9a41-0a7c7e5e9f11"
        path = changeable.path(changeable.card("t4"))
        changeable.write(f"{path}/mdev_supported_types/nvidia-230/create", uuid)

        later = found(changeable, "mdev_driver", text)[-1].deployables[0]

        assert later.num_accelerators == devices[-1].deployables[0].num_accelerators
        assert later.prepared == (uuid,)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("{", "is not JSON"),
        ("{}", "must be an object with mdev_type"),
        ('{"mdev_type": "a", "parents": "b"}', "it may have"),
        ('{"mdev_type": "a", "type": "TOASTER"}', "type must be one of"),
    ],
)
def test_a_wrong_list_of_mediated_devices_is_told(spec, sentence):
    text = f"[mdev]\nmdev_spec = {spec}\n"
    loaded = registry.load(passes.configured(text, ["mdev_driver"], "host-1"))

    assert sentence in loaded.errors["mdev_driver"]


class TestPassthrough(contract.SimulatedDriverContract):
    entry_point = "pci_driver"
    recorded = "mixed"
    options = """
        [pci]
        device_spec = {{"vendor_id": "10de", "product_id": "20f1"}}
        device_spec = {{"vendor_id": "8086", "product_id": "1572", "exclude": true}}
        device_spec = {{"vendor_id": "8086", "type": "NIC", "resource_class": "nic"}}
        device_spec = {{"vendor_id": "144d"}}
    """

    def test_type_and_class_are_those_of_the_rule(self, simulated, devices):
        kinds = {
            (device.type, device.vendor, device.deployables[0].resource_class)
            for device in devices
        }
        assert kinds == {
            ("PCI", "10de", "CUSTOM_PCI"),
            ("NIC", "8086", "CUSTOM_NIC"),
            ("PCI", "144d", "CUSTOM_PCI"),
        }
        # What the host uses or is excluded is not offered.
        offered = set(names(devices))
        for name in ("nvme-system", "uplink", "x710"):
            assert f"host-1_{simulated.card(name)}" not in offered
        assert f"host-1_{simulated.card('nvme-pm1733')}" in offered

    def test_every_driver_at_once_finds_each_function_once(self, simulated):
        """With one walk of the bus, and no process."""
        text = '[nvme]\ndevice_spec = {"vendor_id": "144d"}\n[pci]\ndevice_spec = '

        (only,) = simulated.call(passes.run, ALL, f'{text}{{"vendor_id": "10de"}}')

        assert only.errors == {
            "mdev_driver": "[mdev] mdev_spec is not set, so the driver reports nothing"
        }
        given = [
            pci.join(each.attach_info)
            for devices in only.devices.values()
            for device in devices
            for deployable in device.deployables
            for each in deployable.attach_handles
        ]
        assert len(set(given)) == len(given)
        idle = {driver for driver in ALL if not only.devices[driver]}
        assert idle == {"mdev_driver", "pci_driver"}
        spent = simulated.call(passes.cost, ALL, f'{text}{{"vendor_id": "15b3"}}')
        assert spent == passes.Cost(children=[], walks=1)


ALL = [
    "amd_gpu_driver",
    "huawei_ascend_driver",
    "inspur_fpga_driver",
    "inspur_nvme_ssd_driver",
    "intel_fpga_driver",
    "intel_nic_driver",
    "intel_qat_driver",
    "mdev_driver",
    "nvidia_gpu_driver",
    "nvme_driver",
    "pci_driver",
    "xilinx_fpga_driver",
]
