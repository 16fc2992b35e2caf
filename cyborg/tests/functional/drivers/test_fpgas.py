# SPDX-License-Identifier: Apache-2.0
"""FPGA cards: Intel's with their regions, Xilinx's with two functions, Inspur's whole."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping

from cyborg.drivers import base, pci
from cyborg.tests.contract import simulated as contract
from cyborg.tests.found_cards import found, handle


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
        """One with two regions has the traits of both."""
        (deployable,) = devices[3].deployables
        assert deployable.traits[:3] == (
            "CUSTOM_FPGA_INTEL",
            "CUSTOM_FPGA_INTEL_PAC_N3000",
            "CUSTOM_FPGA_REGION_INTEL_F3C99413FE5C4B3183AA4B1C8D1A6E3E",
        )
        assert deployable.function == "9aeffe5f84570612c000c9660d824272"
        assert deployable.attributes["firmware"] == "0x23000110010309"
        (deployable,) = devices[4].deployables
        regions = [trait for trait in deployable.traits if "REGION" in trait]
        loaded = [trait for trait in deployable.traits if "FUNCTION" in trait]
        assert (len(regions), len(loaded)) == (2, 2)
        assert deployable.program_mode is None


def test_regions_with_a_virtual_function_each_are_below_their_card(simulate):
    simulated = simulate({"cards": [{"card": "d5005", "vfs": 2, "sriov": {"total": 2}}]})

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
    """A card of which another has a part is not programmed."""
    simulated = simulate({"cards": [{"card": "pac-a10", "vfs": 3, "sriov": {"total": 3}}]})
    vfs = simulated.vfs(simulated.card("pac-a10"))
    trait = "CUSTOM_FPGA_FUNCTION_ID_INTEL_D8424DC4A4A3C413F89E433683F9040B"

    def part(group: str, *specs: Mapping[str, object]) -> base.Deployable:
        text = "\n".join([f"[{group}]", *(f"device_spec = {json.dumps(each)}" for each in specs)])
        others = ["pci_driver"] if group == "pci" else []
        (device,) = found(simulated, "intel_fpga_driver", text, *others)
        (deployable,) = device.deployables
        assert deployable.num_accelerators == len(deployable.attach_handles)
        return deployable

    whole = part("intel_fpga_driver")
    assert whole.name == f"host-1_{vfs[0]}"
    assert whole.attach_handles == tuple(handle(vf) for vf in vfs)
    assert whole.program_mode == "single-program"
    for kept, group in itertools.product(([0], [2], [0, 1]), ("intel_fpga_driver", "pci")):
        specs = [{"address": vfs[each], "exclude": group != "pci"} for each in kept]
        rest = part(group, *specs)
        left = tuple(handle(vf) for number, vf in enumerate(vfs) if number not in kept)
        assert rest.attach_handles == left, (kept, group)
        assert (rest.program_mode, rest.function) == (None, None)
        # What it runs cannot be changed, as on any such card.
        assert trait in rest.traits
    # An operator may give such a card the trait that it has.
    tagged = {"vendor_id": "8086", "traits": trait}
    rest = part("intel_fpga_driver", {"address": vfs[0], "exclude": True}, tagged)
    assert rest.traits.count(trait) == 1


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
        card, user = changeable.function(address), f"{address[:-1]}1"
        changeable.pull(address)

        device, *_others = found(changeable, "xilinx_fpga_driver")

        (deployable,) = device.deployables
        assert pci.join(device.control_path.cpid_info) == address
        assert deployable.name == f"host-1_{address}"
        assert deployable.attach_handles == (handle(f"{address[:-1]}1"),)
        assert device.unhealthy == f"PCI function {address} is missing from the bus"
        # So does one whose user's function was never seen, before any agent.
        changeable.appear(card)
        changeable.pull(user)
        device, *others = found(changeable, "xilinx_fpga_driver")
        assert device.unhealthy == f"PCI function {user} is missing from the bus"
        assert {device.unhealthy for device in others} == {None}

    def test_a_card_is_not_programmed_without_one_of_its_functions(self, simulated):
        slot = simulated.card("u250")[:-1]
        for group, other, own in (
            ("pci", "1", "0"), ("xilinx_fpga_driver", "0", "1"), ("xilinx_fpga_driver", "1", "0")
        ):
            spec = json.dumps({"address": f"{slot}{other}", "exclude": group != "pci"})
            others = ["pci_driver"] if group == "pci" else []
            text = f"[{group}]\ndevice_spec = {spec}"
            device, *_ = found(simulated, "xilinx_fpga_driver", text, *others)
            (deployable,) = device.deployables
            assert deployable.attach_handles == (handle(f"{slot}{own}"),), (group, other)
            assert (deployable.program_mode, deployable.function) == (None, None)


class TestInspur(contract.WholeCardContract):
    entry_point = "inspur_fpga_driver"
    recorded = "inspur"
    always = ("fpga-inspur", "FPGA", "FPGA", ("CUSTOM_FPGA_INSPUR", "CUSTOM_FPGA_PRODUCT_ID_0911"))

    def test_disks_are_none(self, devices):
        assert len(devices) == 2
