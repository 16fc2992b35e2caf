# SPDX-License-Identifier: Apache-2.0
"""Drivers that need little more than a table: accelerators of any vendor, Gaudi, Intel's GPUs."""

from __future__ import annotations

import inspect

import pytest

from cyborg.drivers import base, pci, registry
from cyborg.tests.contract import passes
from cyborg.tests.contract import simulated as contract
from cyborg.tests.found_cards import found, names, twice, whys


def part(device: base.Device) -> base.Deployable:
    (only,) = device.deployables
    return only


class TestAccel(contract.SimulatedDriverContract):
    entry_point = "accel_driver"
    recorded = "accel"

    def test_the_class_is_of_vendor_and_product_or_its_family(self, simulated, devices):
        classes = {each.name: each.resource_class for each in map(part, devices)}

        assert {device.type for device in devices} == {"AICHIP"}
        assert classes == {
            f"host-1_{simulated.card('ai100')}": "CUSTOM_QUALCOMM_QAIC",
            f"host-1_{simulated.card('npu')}": "CUSTOM_AMD_AMDXDNA",
            f"host-1_{simulated.card('tenstorrent')}": "CUSTOM_TENSTORRENT_TENSTORRENT",
            f"host-1_{simulated.card('ascend910')}": "CUSTOM_19E5_D801",
        }
        assert devices[0].deployables[0].traits[:3] == (
            "OWNER_CYBORG",
            "CUSTOM_ACCEL_QUALCOMM",
            "CUSTOM_ACCEL_PRODUCT_ID_A100",
        )


def test_an_accelerator_that_another_driver_takes_is_left_to_it(simulate):
    simulated = simulate("accel")

    devices = found(simulated, "accel_driver", "", "huawei_ascend_driver")

    cards = ("ai100", "npu", "tenstorrent")
    assert names(devices) == [f"host-1_{simulated.card(card)}" for card in cards]


def test_the_operator_names_class_and_cards_of_accelerators(simulate):
    simulated = simulate("accel")
    text = (
        '[accel_driver]\ndevice_spec = {"vendor_id": "1e52", "resource_class": "CUSTOM_NPU", '
        '"traits": "CUSTOM_FAST"}\n'
    )

    (device,) = found(simulated, "accel_driver", text)

    assert device.deployables[0].resource_class == "CUSTOM_NPU"
    assert "CUSTOM_FAST" in device.deployables[0].traits


#: Ids, class and driver of accelerators that no driver of their own takes, and what they become.
BY_KIND = {
    "coral": ("1ac1:089a", "088000", "apex", "CUSTOM_CORAL_APEX"),
    "hailo-8": ("1e60:2864", "0b4000", "hailo", "CUSTOM_HAILO_2864"),
    "hailo-10h": ("1e60:45c4", "0b4000", "hailo1x", "CUSTOM_HAILO_45C4"),
    "hygon": ("1d94:54b7", "0b4000", "hydcu", "CUSTOM_HYGON_54B7"),
    "memryx": ("1fe9:0100", "ff0000", "memx_pcie_ai_chip", "CUSTOM_MEMRYX_0100"),
    "trainium": ("1d0f:7164", "088000", "neuron", "CUSTOM_AMAZON_7164"),
    "metax": ("9999:4001", "030000", "metax", "CUSTOM_METAX_4001"),
    "moore": ("1ed5:0222", "030000", "mtgpu", "CUSTOM_MOORE_THREADS_0222"),
    "dlb": ("8086:2710", "0b4000", "dlb2", "CUSTOM_INTEL_2710"),
}
#: Those that no accelerator driver takes: parts of chipsets, and what else a vendor makes.
OTHERS: dict[str, tuple[str, str, str | None]] = {
    "uncore": ("8086:3250", "088000", None),
    "storage-of-amazon": ("1d0f:8061", "010802", "nvme"),
    "coprocessor-of-a-chipset": ("8086:4940", "0b4000", "4xxx"),
    "screen": ("102b:0536", "030000", "mgag200"),
}


def of_kind(name: str, ids: str, code: str, driver: str | None) -> dict[str, object]:
    return {"card": "tenstorrent", "name": name, "id": ids, "class": code, "driver": driver}


def test_accelerators_are_known_by_class_and_vendor(simulate):
    known = {**{name: rest[:3] for name, rest in BY_KIND.items()}, **OTHERS}
    cards = [of_kind(name, *rest) for name, rest in known.items()]
    simulated = simulate({"cards": cards})

    devices = found(simulated, "accel_driver")

    parts = {each.name: each.resource_class for device in devices for each in device.deployables}
    assert parts == {f"host-1_{simulated.card(name)}": BY_KIND[name][3] for name in BY_KIND}


@pytest.mark.parametrize("helper", ["pci-pf-stub", "xen-pciback"])
def test_the_class_is_not_of_a_helper_driver(simulate, helper):
    cards = [of_kind(ids[5:], ids, "120001", helper) for ids in ("8086:0d5c", "8086:57c0")]
    simulated = simulate({"cards": cards})

    devices = found(simulated, "accel_driver")

    classes = [each.resource_class for device in devices for each in device.deployables]
    assert classes == ["CUSTOM_INTEL_0D5C", "CUSTOM_INTEL_57C0"]


def test_an_accelerator_that_is_excluded_takes_no_other_along(simulate):
    simulated = simulate("accel")
    text = '[accel_driver]\ndevice_spec = {"vendor_id": "1e52", "exclude": true}\n'

    devices = found(simulated, "accel_driver", text)

    cards = ("ai100", "npu", "ascend910")
    assert names(devices) == [f"host-1_{simulated.card(card)}" for card in cards]


def test_the_class_stays_while_guests_have_the_cards(simulate, tmp_path):
    simulated = simulate({"cards": ["ai100", "npu"]})
    nodes = dict.fromkeys(map(str, (simulated.root / "sys/class/accel").iterdir()))

    text = f"[DEFAULT]\nstate_path = {tmp_path}\n"
    before, after = simulated.call(twice, "accel_driver", text, nodes, simulated.layout.cards)

    assert len(before) == 2
    assert [(part(each).name, part(each).resource_class) for each in after] == [
        (part(each).name, part(each).resource_class) for each in before
    ]


class TestHabana(contract.SimulatedDriverContract):
    entry_point = "habana_driver"
    recorded = "gaudi"

    def test_generation_and_firmware_are_told(self, devices):
        first, _second, third = (device.deployables[0] for device in devices)

        assert first.resource_class == "CUSTOM_GAUDI"
        assert "CUSTOM_AICHIP_GAUDI2" in first.traits
        assert "CUSTOM_AICHIP_GAUDI3" in third.traits
        assert first.attributes["firmware"] == "1.16.2-fw-50.1.2"

    def test_a_processor_that_the_host_has_given_up_ails(self, changeable):
        address = changeable.card("gaudi3")
        changeable.files.put(f"{changeable.path(address)}/status", "Malfunction")

        devices = found(changeable, "habana_driver")

        assert [device.unhealthy for device in devices] == [
            None,
            None,
            f"Gaudi {address} is in status malfunction",
        ]

        changeable.files.unlink(f"{changeable.path(address)}/status")
        last = found(changeable, "habana_driver")[2]
        assert (last.unhealthy, last.health_unknown) == (None, False)

    @pytest.mark.parametrize("place", ["accel", "class", "own"])
    def test_files_of_other_releases_are_at_the_device_of_a_class(self, changeable, place):
        address = changeable.card("gaudi3")
        function = changeable.path(address)
        former = "devices/virtual/habanalabs/hl2"
        if place == "own":
            former = f"{function}/habanalabs/hl2"
        else:
            changeable.files.put(f"{former}/pci_addr", address)
        changeable.files.link("class/habanalabs/hl2", former)
        (device,) = changeable.files.names(f"{function}/accel")
        at = f"{function}/accel/{device}" if place == "accel" else former
        for name, text in (("status", "Malfunction"), ("armcp_ver", "1.9")):
            changeable.files.unlink(f"{function}/{name}")
            changeable.files.put(f"{at}/{name}", text)

        last = found(changeable, "habana_driver")[2]

        assert last.unhealthy == f"Gaudi {address} is in status malfunction"
        assert last.deployables[0].attributes["firmware"] == "1.9"


class TestIntelGpu(contract.SimulatedDriverContract):
    entry_point = "intel_gpu_driver"
    recorded = "intel-gpu"

    def test_cards_are_whole_or_virtual_and_the_processors_own_is_none(self, devices):
        classes = [[each.resource_class for each in device.deployables] for device in devices]

        assert classes == [["PGPU"], ["VGPU"] * 3, ["PGPU"]]

    def test_memory_is_told_where_the_kernel_does(self, devices):
        first, shared, arc = (device.deployables[0] for device in devices)

        assert first.attributes["memory_mib"] == 14548
        assert "memory_mib" not in {*shared.attributes, *arc.attributes}
        assert "CUSTOM_INTEL_GPU_56C0" in shared.traits

    @pytest.mark.parametrize(
        "paths",
        [
            ["lmem_total_bytes"],
            ["tile0/physical_vram_size_bytes"],
            ["tile0/memory/physical_vram_size_bytes", "tile1/memory/physical_vram_size_bytes"],
        ],
    )
    def test_memory_of_a_card_is_told_under_every_name(self, changeable, paths):
        arc = changeable.card("arc-pro")
        for path in paths:
            changeable.files.put(f"{changeable.path(arc)}/{path}", str((16 << 30) // len(paths)))

        last = found(changeable, "intel_gpu_driver")[2]

        assert last.deployables[0].attributes["memory_mib"] == 16384

    @pytest.mark.parametrize(
        "path",
        [
            "{own}/drm/{name}/iov/vf2/gt/lmem_quota",
            "{own}/drm/{name}/iov/vf2/gt0/lmem_quota",
            "{own}/drm/{name}/prelim_iov/vf2/gt0/lmem_quota",
            "{own}/sriov_admin/vf2/profile/vram_quota",
            "kernel/debug/dri/{card}/sriov/vf2/tile0/vram_quota",
            "kernel/debug/dri/{card}/gt0/vf2/lmem_quota",
        ],
    )
    def test_memory_of_a_part_is_its_quota(self, changeable, path):
        devices = found(changeable, "intel_gpu_driver")
        card = pci.join(devices[1].control_path.cpid_info)
        (name,) = changeable.files.names(f"{changeable.path(card)}/drm")
        at = path.format(own=changeable.path(card), name=name, card=card)
        changeable.files.put(at, str(4 << 30))

        parts = found(changeable, "intel_gpu_driver")[1].deployables

        assert [part.attributes.get("memory_mib") for part in parts] == [None, 4096, None]


class TestDsa(contract.SimulatedDriverContract):
    entry_point = "intel_dsa_driver"
    recorded = "dsa"

    def test_queues_and_engines_are_told(self, devices):
        dsa, iaa = (device.deployables[0] for device in devices)

        assert (dsa.resource_class, iaa.resource_class) == ("CUSTOM_DSA", "CUSTOM_IAA")
        assert (dsa.attributes["work_queues"], dsa.attributes["engines"]) == ("8", "4")
        assert (iaa.attributes["work_queues"], iaa.attributes["engines"]) == ("8", "8")
        assert {device.unhealthy for device in devices} == {None}


@pytest.mark.parametrize(
    ("driver", "card", "reason"),
    [
        ("intel_dsa_driver", "in-use", "the host has enabled dsa"),
        ("intel_gpu_driver", "igpu", "it is the processor's own graphics"),
    ],
)
def test_what_stays_with_the_host_has_a_reason(simulate, driver, card, reason):
    simulated = simulate("dsa" if card == "in-use" else "intel-gpu")

    assert reason in simulated.call(whys, driver)[simulated.card(card)][0]
    assert f"host-1_{simulated.card(card)}" not in names(found(simulated, driver))


class TestNic(contract.SimulatedDriverContract):
    entry_point = "nic_driver"
    recorded = "any-nic"
    options = """
        [nic_driver]
        device_spec = {{"address": "{connectx6}", "physical_network": "net-1", "trusted": true}}
        device_spec = {{"vendor_id": "8086", "remote_managed": "true"}}
        device_spec = {{"vendor_id": "15b3"}}
    """

    def test_ports_with_sriov_are_reported_and_the_hosts_uplink_is_not(self, simulated, devices):
        vfs = [simulated.vfs(simulated.card(card)) for card in ("connectx6", "e810")]

        assert names(devices) == [f"host-1_{vf}" for vf in (*vfs[0], *vfs[1])]
        assert {device.type for device in devices} == {"NIC"}

    def test_what_nova_and_neutron_need_is_in_handles_and_traits(self, devices):
        mellanox, intel = (device.deployables[0] for device in devices)

        info = mellanox.attach_handles[0].attach_info
        assert (info["physical_network"], info["trusted"]) == ("net-1", "true")
        assert intel.attach_handles[0].attach_info["remote_managed"] == "true"
        assert "physical_network" not in intel.attach_handles[0].attach_info
        assert {"HW_NIC_SRIOV", "HW_NIC_SRIOV_TRUSTED", "CUSTOM_NET_1"} <= set(mellanox.traits)
        assert {"HW_NIC_SRIOV", "CUSTOM_NIC_REMOTE_MANAGED"} <= set(intel.traits)
        assert "HW_NIC_SRIOV_TRUSTED" not in intel.traits


@pytest.mark.parametrize(
    "spec", ['{"trusted": "perhaps"}', '{"physical_network": ""}', '{"physical_network": 7}']
)
def test_a_wrong_tag_of_a_network_card_is_refused(simulate, spec):
    simulated = simulate("any-nic")

    (only,) = simulated.call(passes.run, ["nic_driver"], f"[nic_driver]\ndevice_spec = {spec}\n")

    assert "[nic_driver] device_spec" in only.errors["nic_driver"]


def test_a_network_card_without_its_network_is_told_in_the_log(caplog):
    text = """[nic_driver]
    device_spec = {"vendor_id": "15b3", "physical_network": "net-1"}
    device_spec = {"vendor_id": "8086"}
    device_spec = {"vendor_id": "14e4", "exclude": true}
    """

    loaded = registry.load(passes.configured(inspect.cleandoc(text), ["nic_driver"], "host-1"))

    assert loaded.drivers
    (said,) = [line for line in caplog.messages if "physical_network" in line]
    assert said.startswith("Object 2 of [nic_driver] device_spec")
