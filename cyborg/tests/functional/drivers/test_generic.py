# SPDX-License-Identifier: Apache-2.0
"""Drivers that need little more than a table: accelerators of any vendor, Gaudi, Intel's GPUs."""

from __future__ import annotations

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
        traits = ("OWNER_CYBORG", "CUSTOM_ACCEL_QUALCOMM", "CUSTOM_ACCEL_PRODUCT_ID_A100")
        assert devices[0].deployables[0].traits[:3] == traits

    def test_an_accelerator_that_another_driver_takes_or_that_is_excluded_is_left(self, simulated):
        excluded = '[accel_driver]\ndevice_spec = {"vendor_id": "1e52", "exclude": true}\n'
        for text, others, cards in (
            ("", ["huawei_ascend_driver"], ("ai100", "npu", "tenstorrent")),
            (excluded, [], ("ai100", "npu", "ascend910")),
        ):
            devices = found(simulated, "accel_driver", text, *others)
            assert names(devices) == [f"host-1_{simulated.card(card)}" for card in cards]

    def test_the_operator_names_class_and_cards_of_accelerators(self, simulated):
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


def test_the_class_is_not_of_a_helper_driver(simulate):
    helpers = {"8086:0d5c": "pci-pf-stub", "8086:57c0": "pci-pf-stub", "8086:0d5d": "xen-pciback"}
    cards = [of_kind(ids, ids, "120001", helper) for ids, helper in helpers.items()]

    devices = found(simulate({"cards": cards}), "accel_driver")

    classes = [part(each).resource_class for each in devices]
    assert classes == ["CUSTOM_INTEL_0D5C", "CUSTOM_INTEL_57C0", "CUSTOM_INTEL_0D5D"]


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

        ailing = f"Gaudi {address} is in status malfunction"
        assert [device.unhealthy for device in devices] == [None, None, ailing]
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

    def test_cards_are_whole_or_virtual_and_the_processors_own_is_none(self, simulated, devices):
        classes = [[each.resource_class for each in device.deployables] for device in devices]
        assert classes == [["PGPU"], ["VGPU"] * 3, ["PGPU"]]
        own = simulated.call(whys, "intel_gpu_driver")[simulated.card("igpu")]
        assert "it is the processor's own graphics" in own[0]
        # Memory is told where the kernel does.
        first, shared, arc = (device.deployables[0] for device in devices)
        assert first.attributes["memory_mib"] == 14548
        assert "memory_mib" not in {*shared.attributes, *arc.attributes}
        assert "CUSTOM_INTEL_GPU_56C0" in shared.traits

    def test_memory_of_a_card_is_told_under_every_name(self, changeable):
        arc = changeable.path(changeable.card("arc-pro"))
        for paths in (
            ["lmem_total_bytes"],
            ["tile0/physical_vram_size_bytes"],
            ["tile0/memory/physical_vram_size_bytes", "tile1/memory/physical_vram_size_bytes"],
        ):
            for path in paths:
                changeable.files.put(f"{arc}/{path}", str((16 << 30) // len(paths)))
            last = found(changeable, "intel_gpu_driver")[2]
            assert last.deployables[0].attributes["memory_mib"] == 16384, paths
            for path in paths:
                changeable.files.unlink(f"{arc}/{path}")

    def test_memory_of_a_part_is_its_quota(self, changeable, devices):
        card = pci.join(devices[1].control_path.cpid_info)
        own, debug = changeable.path(card), f"kernel/debug/dri/{card}"
        (name,) = changeable.files.names(f"{own}/drm")
        for at in (
            f"{own}/drm/{name}/iov/vf2/gt/lmem_quota",
            f"{own}/drm/{name}/iov/vf2/gt0/lmem_quota",
            f"{own}/drm/{name}/prelim_iov/vf2/gt0/lmem_quota",
            f"{own}/sriov_admin/vf2/profile/vram_quota",
            f"{debug}/sriov/vf2/tile0/vram_quota",
            f"{debug}/gt0/vf2/lmem_quota",
        ):
            changeable.files.put(at, str(4 << 30))
            parts = found(changeable, "intel_gpu_driver")[1].deployables
            assert [each.attributes.get("memory_mib") for each in parts] == [None, 4096, None], at
            changeable.files.unlink(at)


class TestDsa(contract.SimulatedDriverContract):
    entry_point = "intel_dsa_driver"
    recorded = "dsa"

    def test_queues_and_engines_are_told(self, simulated, devices):
        dsa, iaa = (device.deployables[0] for device in devices)

        assert (dsa.resource_class, iaa.resource_class) == ("CUSTOM_DSA", "CUSTOM_IAA")
        assert (dsa.attributes["work_queues"], dsa.attributes["engines"]) == ("8", "4")
        assert (iaa.attributes["work_queues"], iaa.attributes["engines"]) == ("8", "8")
        assert {device.unhealthy for device in devices} == {None}
        # The third one stays with the host.
        used = simulated.call(whys, "intel_dsa_driver")[simulated.card("in-use")]
        assert "the host has enabled dsa" in used[0]


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
        # What Nova and Neutron need is in handles and traits.
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
def test_a_wrong_tag_of_a_network_card_is_refused(spec):
    assert "[nic_driver] device_spec" in nic_driver(spec).errors["nic_driver"]


def nic_driver(*specs: str) -> registry.Registry:
    text = "".join(["[nic_driver]\n", *(f"device_spec = {spec}\n" for spec in specs)])
    return registry.load(passes.configured(text, ["nic_driver"], "host-1"))


def test_a_network_card_without_its_network_is_told_in_the_log(caplog):
    loaded = nic_driver(
        '{"vendor_id": "15b3", "physical_network": "net-1"}',
        '{"vendor_id": "8086"}',
        '{"vendor_id": "14e4", "exclude": true}',
    )
    assert loaded.drivers
    (said,) = [line for line in caplog.messages if "physical_network" in line]
    assert said.startswith("Object 2 of [nic_driver] device_spec")
