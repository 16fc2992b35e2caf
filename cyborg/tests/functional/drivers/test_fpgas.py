# SPDX-License-Identifier: Apache-2.0
"""FPGA cards: Intel's with their regions, Xilinx's with two functions, Inspur's whole."""

from __future__ import annotations

import json

import pytest

from cyborg.drivers import pci
from cyborg.tests.contract import simulated as contract
from cyborg.tests.found_cards import found, handle

#: A card of which parts are given out.
DIVIDED = {"cards": [{"card": "pac-a10", "vfs": 3, "sriov": {"total": 3}}]}
TWO_REGIONS = {"cards": [{"card": "d5005", "vfs": 2, "sriov": {"total": 2}}]}


class TestIntel(contract.SimulatedDriverContract):
    entry_point = "intel_fpga_driver"
    recorded = "intel-fpga"

    def test_a_card_under_the_older_driver_is_as_it_always_was(self, simulated, devices):
        address = simulated.card("pac-a10-shared")
        device = devices[1]

        (deployable,) = device.deployables
        vf = f"{address[:-1]}1"
        assert pci.join(device.control_path.cpid_info) == address
        assert (device.type, deployable.resource_class) == ("FPGA", "FPGA")
        assert deployable.name == f"host-1_{vf}"
        assert deployable.traits[:3] == (
            "CUSTOM_FPGA_INTEL",
            "CUSTOM_FPGA_INTEL_PAC_ARRIA10",
            "CUSTOM_FPGA_REGION_INTEL_9926AB6D6C925A68AABCA7D84C545738",
        )
        # The trait of it is the conductor's.
        assert deployable.function == "d8424dc4a4a3c413f89e433683f9040b"
        assert (deployable.program_mode, deployable.function_vendor) == ("dynamic", "INTEL")
        assert deployable.attach_handles == (handle(vf),)
        # A card without virtual functions is given itself.
        (whole,) = devices[0].deployables
        assert whole.name == f"host-1_{simulated.card('pac-a10')}"
        assert whole.attach_handles == (handle(simulated.card("pac-a10")),)

    def test_a_card_under_the_kernels_driver(self, devices):
        (deployable,) = devices[3].deployables

        assert deployable.traits[:3] == (
            "CUSTOM_FPGA_INTEL",
            "CUSTOM_FPGA_INTEL_PAC_N3000",
            "CUSTOM_FPGA_REGION_INTEL_F3C99413FE5C4B3183AA4B1C8D1A6E3E",
        )
        assert deployable.function == "9aeffe5f84570612c000c9660d824272"
        assert deployable.attributes["firmware"] == "0x23000110010309"

    def test_a_card_with_two_regions_has_the_traits_of_both(self, devices):
        (deployable,) = devices[4].deployables

        regions = [trait for trait in deployable.traits if "REGION" in trait]
        loaded = [trait for trait in deployable.traits if "FUNCTION" in trait]
        assert (len(regions), len(loaded)) == (2, 2)
        assert deployable.program_mode is None


def test_regions_with_a_virtual_function_each_are_below_their_card(simulate):
    simulated = simulate(TWO_REGIONS)

    (device,) = found(simulated, "intel_fpga_driver")

    address = simulated.card("d5005")
    vfs = simulated.vfs(address)
    card, first, second = device.deployables
    assert (card.name, card.parent) == (f"host-1_{address}", None)
    assert (card.num_accelerators, card.attach_handles) == (0, ())
    assert card.traits[:2] == ("CUSTOM_FPGA_INTEL", "CUSTOM_FPGA_INTEL_PAC_D5005")
    assert not [trait for trait in card.traits if "REGION" in trait or "FUNCTION" in trait]
    assert card.attributes["firmware"] == "0x23000110010309"
    assert [first.name, second.name] == [f"host-1_{vf}" for vf in vfs]
    assert first.parent == second.parent == card.name
    assert first.attach_handles == (handle(vfs[0]),)
    assert "CUSTOM_FPGA_REGION_INTEL_F3C99413FE5C4B3183AA4B1C8D1A6E3E" in first.traits
    assert (first.program_mode, first.function_vendor) == ("dynamic", "INTEL")
    assert first.function == "9aeffe5f84570612c000c9660d824272"
    assert "CUSTOM_FPGA_REGION_INTEL_BFAC4D851EE856FE8C95865CE1BBAA2D" in second.traits
    assert second.function == "56e203e9864f49a7b94b12284c31e02b"
    assert not set(first.traits) >= {trait for trait in second.traits if "REGION" in trait}

    # One that does not show its function is not programmed.
    card = simulated.root / "sys/bus/pci/devices" / simulated.card("d5005")
    for port in card.glob("fpga_region/*/dfl-port.*/afu_id"):
        if "56e203" in port.read_text():
            port.unlink()

    (device,) = found(simulated, "intel_fpga_driver")

    _, first, second = device.deployables
    assert (first.program_mode, second.program_mode) == ("dynamic", None)


def test_one_region_has_a_handle_for_each_virtual_function(simulate):
    simulated = simulate(DIVIDED)

    (device,) = found(simulated, "intel_fpga_driver")

    (deployable,) = device.deployables
    vfs = simulated.vfs(simulated.card("pac-a10"))
    assert deployable.name == f"host-1_{vfs[0]}"
    assert deployable.num_accelerators == 3
    assert deployable.attach_handles == tuple(handle(vf) for vf in vfs)
    assert deployable.program_mode == "single-program"


@pytest.mark.parametrize("others", [[0], [2], [0, 1]])
@pytest.mark.parametrize("is_excluded", [True, False])
def test_a_card_of_which_another_has_a_part_is_not_programmed(simulate, others, is_excluded):
    simulated = simulate(DIVIDED)
    vfs = simulated.vfs(simulated.card("pac-a10"))
    group = "[intel_fpga_driver]" if is_excluded else "[pci]"
    specs = [json.dumps({"address": vfs[each], "exclude": is_excluded}) for each in others]
    text = "\n".join([group, *(f"device_spec = {spec}" for spec in specs)])

    others_driver = [] if is_excluded else ["pci_driver"]
    (device,) = found(simulated, "intel_fpga_driver", text, *others_driver)

    (deployable,) = device.deployables
    rest = [vf for number, vf in enumerate(vfs) if number not in others]
    assert deployable.attach_handles == tuple(handle(vf) for vf in rest)
    assert deployable.num_accelerators == len(rest)
    assert (deployable.program_mode, deployable.function) == (None, None)
    # What it runs cannot be changed, as on any such card.
    assert "CUSTOM_FPGA_FUNCTION_ID_INTEL_D8424DC4A4A3C413F89E433683F9040B" in deployable.traits


def test_an_operator_may_give_such_a_card_the_trait_that_it_has(simulate):
    simulated = simulate(DIVIDED)
    trait = "CUSTOM_FPGA_FUNCTION_ID_INTEL_D8424DC4A4A3C413F89E433683F9040B"
    excluded = {"address": simulated.vfs(simulated.card("pac-a10"))[0], "exclude": True}
    specs = [json.dumps(spec) for spec in (excluded, {"vendor_id": "8086", "traits": trait})]
    text = "\n".join(["[intel_fpga_driver]", *(f"device_spec = {spec}" for spec in specs)])

    (device,) = found(simulated, "intel_fpga_driver", text)

    (deployable,) = device.deployables
    assert deployable.traits.count(trait) == 1


class TestXilinx(contract.WholeCardContract):
    entry_point = "xilinx_fpga_driver"
    recorded = "xilinx"

    always = ("u250", "FPGA", "FPGA", ("CUSTOM_FPGA_XILINX", "CUSTOM_FPGA_PRODUCT_ID_5004"))
    given = 2

    def test_a_card_is_given_with_both_its_functions(self, simulated, devices):
        address = simulated.card("u250")

        (deployable,) = devices[0].deployables
        assert deployable.attach_handles == (handle(address), handle(f"{address[:-1]}1"))
        # Its shell is the firmware.
        assert deployable.attributes["firmware"] == "xilinx_u250_gen3x16_xdma_shell_4_1"

    def test_a_card_that_loses_a_function_keeps_its_name_and_ails(self, changeable):
        address = changeable.card("u250")
        changeable.pull(address)

        device, *_others = found(changeable, "xilinx_fpga_driver")

        (deployable,) = device.deployables
        assert pci.join(device.control_path.cpid_info) == address
        assert deployable.name == f"host-1_{address}"
        assert deployable.attach_handles == (handle(f"{address[:-1]}1"),)
        assert device.unhealthy == f"PCI function {address} is missing from the bus"

    def test_a_card_whose_users_function_was_never_seen_is_given_to_nobody(self, changeable):
        user = f"{changeable.card('u250')[:-1]}1"
        changeable.pull(user)

        device, *others = found(changeable, "xilinx_fpga_driver")

        assert device.unhealthy == f"PCI function {user} is missing from the bus"
        assert {device.unhealthy for device in others} == {None}


@pytest.mark.parametrize(
    ("group", "other", "own"),
    [("pci", "1", "0"), ("xilinx_fpga_driver", "0", "1"), ("xilinx_fpga_driver", "1", "0")],
)
def test_a_xilinx_card_is_not_programmed_without_one_of_its_functions(
    simulate, group, other, own
):
    simulated = simulate({"cards": ["u250"]})
    slot = simulated.card("u250")[:-1]
    spec = json.dumps({"address": f"{slot}{other}", "exclude": group != "pci"})
    text = f"[{group}]\ndevice_spec = {spec}"

    others_driver = ["pci_driver"] if group == "pci" else []
    (device,) = found(simulated, "xilinx_fpga_driver", text, *others_driver)

    (deployable,) = device.deployables
    assert deployable.attach_handles == (handle(f"{slot}{own}"),)
    assert (deployable.program_mode, deployable.function) == (None, None)


class TestInspur(contract.WholeCardContract):
    entry_point = "inspur_fpga_driver"
    recorded = "inspur"
    always = ("fpga-inspur", "FPGA", "FPGA", ("CUSTOM_FPGA_INSPUR", "CUSTOM_FPGA_PRODUCT_ID_0911"))

    def test_disks_are_none(self, devices):
        assert len(devices) == 2
