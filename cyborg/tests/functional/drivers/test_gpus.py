# SPDX-License-Identifier: Apache-2.0
"""GPUs: whole ones, and what they are divided into."""

from __future__ import annotations

import functools
import json

import pytest

from cyborg.drivers import base, pci
from cyborg.tests import found_cards
from cyborg.tests.contract import passes
from cyborg.tests.contract import simulated as contract
from cyborg.tests.found_cards import handle, names, twice

pytestmark = pytest.mark.slow

A100, MIG, WHOLE, H100, H200, T4, PASSED = (
    f"0000:{bus}:00.0" for bus in ("19", "21", "29", "31", "39", "41", "49")
)


def by_card(devices) -> dict[str, list[base.Deployable]]:
    found: dict[str, list[base.Deployable]] = {}
    for device in devices:
        slot = pci.join(device.control_path.cpid_info).rpartition(":")[0]
        found.setdefault(f"{slot}:00.0", []).extend(device.deployables)
    return found


def found(simulated, text: str = "") -> tuple[base.Device, ...]:
    return found_cards.found(simulated, "nvidia_gpu_driver", text)


class TestDividedNvidia(contract.SimulatedDriverContract):
    entry_point = "nvidia_gpu_driver"
    recorded = "nvidia"
    options = """
        [gpu_devices]
        enabled_vgpu_types = nvidia-474, nvidia-475, nvidia-1137, nvidia-222
        [vgpu_nvidia-474]
        device_addresses = {a100}
        [vgpu_nvidia-475]
        device_addresses = {a100-mig}
        [vgpu_nvidia-1137]
        device_addresses = {h100}
        [vgpu_nvidia-222]
        device_addresses = {t4}
    """

    def test_each_card_has_as_many_parts_as_fit_on_it_and_the_rest_are_whole(self, devices):
        cards = by_card(devices)
        assert {
            card: [(each.resource_class, each.num_accelerators) for each in deployables]
            for card, deployables in cards.items()
        } == {
            A100: [("VGPU", 1)],
            MIG: [("VGPU", 1)] * 7,
            WHOLE: [("PGPU", 1)],
            H100: [("VGPU", 1)] * 2,
            T4: [("VGPU", 16)],
            PASSED: [("PGPU", 1)],
        }
        # Slices are told from shares of time.
        assert all("CUSTOM_NVIDIA_MIG" in each.traits for each in cards[MIG])
        assert all("CUSTOM_NVIDIA_20F1_A100_1_5C" in each.traits for each in cards[MIG])
        assert not any("CUSTOM_NVIDIA_MIG" in each.traits for each in cards[A100] + cards[H100])
        # A virtual function that is given a type is a PCI device.
        first, _second = cards[H100]
        assert "CUSTOM_NVIDIA_2330_H100XM_40C" in first.traits
        assert first.attributes["memory_mib"] == 40960
        assert first.attach_handles == (handle("0000:31:00.4", asked_type="1137"),)

    def test_a_mediated_device_is_named_as_it_always_was(self, devices):
        (deployable,) = by_card(devices)[T4]

        assert deployable.name == f"host-1_{T4}"
        assert deployable.traits[:2] == ("OWNER_CYBORG", "CUSTOM_NVIDIA_1EB8_T4_1B")
        assert (deployable.prepares, deployable.cleans, deployable.prepared) == (True, True, ())
        assert deployable.attributes["memory_mib"] == 1024
        assert deployable.attach_handles[15] == base.AttachHandle(
            attach_type="MDEV",
            attach_info={
                **pci.split(T4),
                "asked_type": "nvidia-222",
                "vgpu_mark": "nvidia-222_15",
            },
        )
        # One on a virtual function by the address of that.
        (of_vf,) = by_card(devices)[A100]
        assert of_vf.name == "host-1_0000:19:00.4"
        assert "CUSTOM_NVIDIA_20F1_A100_40C" in of_vf.traits

    def test_parts_in_use_are_still_what_was_offered(self, changeable, text, devices):
        uuid = "b1c5e0f0-6f1c-4a3e-9a41-0a7c7e5e9f11"
        vf = changeable.path("0000:19:00.4")
        changeable.write(f"{vf}/mdev_supported_types/nvidia-474/create", uuid)
        changeable.write(f"{changeable.path('0000:31:00.4')}/nvidia/current_vgpu_type", "1137")
        changeable.write(f"{changeable.path('0000:31:00.5')}/nvidia/current_vgpu_type", "1137")

        later = found(changeable, text)

        assert names(later) == names(devices)
        assert by_card(later)[A100][0].prepared == (uuid,)
        assert len(by_card(later)[H100]) == 2


class TestWholeNvidia(contract.SimulatedDriverContract):
    entry_point = "nvidia_gpu_driver"
    recorded = "nvidia"

    def test_a_card_is_as_it_always_was(self, devices):
        # None that has virtual functions is whole, nor is the host's screen.
        assert names(devices) == [f"host-1_{card}" for card in (WHOLE, T4, PASSED)]
        device = devices[1]
        (deployable,) = device.deployables
        assert (device.type, device.vendor) == ("GPU", "10de")
        assert json.loads(device.std_board_info)["product_id"] == "1eb8"
        assert device.control_path == base.ControlPath(cpid_type="PCI", cpid_info=pci.split(T4))
        assert (deployable.resource_class, deployable.num_accelerators) == ("PGPU", 1)
        assert deployable.traits[:2] == ("OWNER_CYBORG", "CUSTOM_NVIDIA_1EB8")
        assert deployable.attach_handles == (handle(T4),)

    def test_facts_are_attributes_and_some_are_traits(self, simulate):
        simulated = simulate({"cards": [{"card": "h100", "numa": 1}]})
        ((part,),) = (device.deployables for device in found(simulated))

        assert part.attributes["memory_mib"] == 81920
        assert part.attributes["numa_node"] == 1
        assert part.attributes["pci_address"] == simulated.card("h100")
        assert part.attributes["firmware"] == "92.00.45.00.03"
        assert {"CUSTOM_MEMORY_GIB_80", "CUSTOM_NUMA_NODE_1"} <= set(part.traits)

        simulated.enable(simulated.card("h100"), 8)
        text = "[gpu_devices]\nlayouts = H100XM-40C\n"
        ((card,),) = (each.deployables for each in found(simulated, text))
        assert card.program_mode == base.LAYOUT
        assert str(card.attributes["serial"]).startswith("GPU-")

    def test_what_only_the_driver_tells_is_remembered_while_a_guest_has_the_card(
        self, changeable
    ):
        known = str(changeable.root / f"proc/driver/nvidia/gpus/{T4}/information")

        before, after = (
            by_card(devices)[T4][0].attributes
            for devices in changeable.call(
                functools.partial(twice, anew=False), "nvidia_gpu_driver", "", {known: None}, [T4]
            )
        )

        assert before["firmware"] == "92.00.45.00.03"
        assert after == before
        # A card is kept while a guest has a part of it.
        vf = changeable.vfs(A100)[3]
        changeable.detach(vf)
        changeable.attach(vf, "vfio-pci")

        assert f"host-1_{A100}" not in names(found(changeable))

    def test_a_wrong_type_keeps_its_card_and_no_other(self, simulated):
        for types, kind in (("nvidia-9", "nvidia-9"), ("x,nvidia-222", "nvidia-222")):
            options = f"enabled_vgpu_types = {types}\n[vgpu_{kind}]\ndevice_addresses = {A100}"
            devices = found(simulated, f"[gpu_devices]\n{options}")
            assert names(devices) == [f"host-1_{card}" for card in (WHOLE, T4, PASSED)], types

    def test_a_single_type_is_for_every_card_that_has_it(self, simulated):
        cards = by_card(found(simulated, "[gpu_devices]\nenabled_vgpu_types = nvidia-222"))

        classes = {card: deployables[0].resource_class for card, deployables in cards.items()}
        assert classes == dict.fromkeys([WHOLE, PASSED], "PGPU") | {T4: "VGPU"}

    def test_a_card_that_is_to_be_of_two_types_becomes_the_first(self, simulated):
        text = (
            "[gpu_devices]\nenabled_vgpu_types = nvidia-230, nvidia-222, 1132\n"
            f"[vgpu_nvidia-230]\ndevice_addresses = {T4}\n"
            f"[vgpu_nvidia-222]\ndevice_addresses = {T4}\n"
            f"[vgpu_1132]\ndevice_addresses = {H100}\nmax_instances = 3\n"
        )
        cards = by_card(found(simulated, text))
        assert cards[T4][0].attributes["vgpu_type"] == "nvidia-230"
        # The operator limits how many parts a card has.
        assert len(cards[H100]) == 3


@pytest.mark.parametrize(
    "options",
    [
        "enabled_vgpu_types = nvidia-474",
        "enabled_vgpu_types = nvidia-474\n[vgpu_nvidia-474]\ndevice_addresses = {card}",
        "enabled_vgpu_types = x,nvidia-474\n[vgpu_nvidia-474]\ndevice_addresses = {vf}",
    ],
    ids=["all", "card", "virtual function"],
)
def test_a_card_that_has_yet_to_get_its_virtual_functions_is_not_whole(simulate, options):
    simulated = simulate({"cards": ["a100", "t4"]})
    card = simulated.card("a100")
    text = "[gpu_devices]\n" + options.format(card=card, vf=f"{card[:-1]}4")

    (only,) = simulated.call(passes.run, ["nvidia_gpu_driver"], text)

    assert names(only.devices["nvidia_gpu_driver"]) == [f"host-1_{simulated.card('t4')}"]
    assert only.errors == {
        "nvidia_gpu_driver": (
            f"GPU {card} is not offered: it may have to be divided into nvidia-474, and has no "
            "virtual functions yet; run sriov-manage, or name other cards in device_addresses"
        )
    }
    simulated.enable(card, 4)
    virtual = f"host-1_{card[:-1]}4"
    assert names(found(simulated, text)).count(virtual) == 1
    # One that is a guest's is whole without virtual functions.
    simulated.detach(card)
    simulated.attach(card, "vfio-pci")
    text = "[gpu_devices]\nenabled_vgpu_types = nvidia-474"
    assert names(found(simulated, text)).count(f"host-1_{card}") == 1


class TestAmd(contract.SimulatedDriverContract):
    entry_point = "amd_gpu_driver"
    recorded = "amd"

    def test_a_part_of_a_card_is_a_virtual_gpu_and_how_it_is_partitioned_a_trait(self, devices):
        kinds = [[each.resource_class for each in device.deployables] for device in devices]
        assert kinds == [["PGPU"], ["VGPU"] * 4, ["PGPU"], ["VGPU"]]
        attributes = devices[2].deployables[0].attributes
        assert attributes["compute_partition"] == "SPX"
        assert attributes["memory_partition"] == "NPS1"
        asked = {"CUSTOM_COMPUTE_PARTITION_SPX", "CUSTOM_MEMORY_PARTITION_NPS1"}
        assert asked <= {*devices[2].deployables[0].traits}
        attributes = devices[0].deployables[0].attributes
        assert attributes["memory_mib"] == 65520
        assert attributes["product"] == "AMD Instinct MI210"
        assert attributes["firmware"] == "113-D673-0401"
        assert "CUSTOM_AMD_740F" in devices[0].deployables[0].traits


def test_a_part_that_is_excluded_takes_no_room_from_others(simulate):
    """All the card's memory is one part's, whichever function that is on."""
    simulated = simulate({"cards": [{"card": "a100", "vfs": 3}]})
    first, second, _third = simulated.vfs(simulated.card("a100"))
    text = (
        "[gpu_devices]\nenabled_vgpu_types = nvidia-474\n"
        f'device_spec = {{"address": "{first}", "exclude": true}}\n'
    )

    (device,) = found(simulated, text)

    assert device.deployables[0].name == f"host-1_{second}"
