# SPDX-License-Identifier: Apache-2.0
"""Whole boards: from sysfs to the domain that Nova's own libvirt driver makes for the guest.

The agent's passes, the conductor, Placement, the API and Nova's client are the real ones.
"""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from cyborg.db import models
from cyborg.tests.compute import Arq, Compute
from cyborg.tests.layouts_site import LayoutsSite
from cyborg.tests.simulated import layout

#: Two boards, each with GPUs and NVSwitches, and a network card that is on neither.
HGX = [
    {"card": "h100", "name": "one", "count": 4},
    {"card": "nvswitch", "name": "one", "count": 2},
    {"card": "h100", "name": "two", "count": 4},
    {"card": "connectx6"},
    {"card": "nvswitch", "name": "two", "count": 2},
]
SOUND = {
    "id": "10de:10f0",
    "subsystem": "10de:12a2",
    "class": "040300",
    "driver": "snd_hda_intel",
    "group": "graphics",
}
#: Two functions of a card of the Open FPGA Stack that have no region, beside the one that has.
OFS = {
    "card": "n3000",
    "name": "ofs",
    "id": "8086:bcce",
    "functions": [
        {"id": "8086:bcce", "subsystem": "8086:0000", "class": "120000", "driver": "dfl-pci"}
        for _number in range(2)
    ],
}
GRAPHICS = {"card": "t4", "name": "t4", "mdev": None, "group": "graphics", "functions": [SOUND]}


def addresses(cards: list[Any], name: str) -> list[str]:
    """The first functions of the cards of that name, which do not depend on what runs."""
    return sorted(layout.load({"cards": cards}).named[name])


def board_spec(address: str, board: str) -> str:
    return (
        f'device_spec = {{"address": "{address}", "board": "{board}", '
        f'"resource_class": "CUSTOM_{board.upper()}"}}\n'
    )


def whole(resource_class: str, functions: int) -> dict[str, str]:
    """A group of a device profile that asks for a board with so many functions."""
    return {f"resources:{resource_class}": str(functions), "trait:CUSTOM_PCI_BOARD": "required"}


def in_guest(compute: Compute, arqs: list[Arq]) -> list[str]:
    """The addresses of the host's functions in the guest's domain, as libvirt reads them."""
    assert {arq["attach_handle_type"] for arq in arqs} == {"PCI"}
    devices = ElementTree.fromstring(compute.client.guest_devices(arqs)["xml"])
    hostdevs = devices.findall("hostdev")
    assert list(devices) == hostdevs
    found = []
    for dev in hostdevs:
        assert dev.attrib == {"mode": "subsystem", "type": "pci", "managed": "yes"}
        (place,) = dev.findall("source/address")
        domain, bus, slot, number = (
            int(place.attrib[key], 16) for key in ("domain", "bus", "slot", "function")
        )
        found.append(f"{domain:04x}:{bus:02x}:{slot:02x}.{number:x}")
    return found


@pytest.fixture
def hgx(start_layouts: Any) -> LayoutsSite:
    """A host with two boards; of what both lines list the first one decides."""
    first = "".join(board_spec(address, "one") for address in addresses(HGX, "one"))
    rest = 'device_spec = {"vendor_id": "10de", "board": "two", "resource_class": "CUSTOM_TWO"}\n'
    site: LayoutsSite = start_layouts(HGX, "pci_driver", f"[pci]\n{first}{rest}")
    return site


def test_each_guest_has_every_function_of_its_board_once(hgx, compute: Compute) -> None:
    assert hgx.deployable("board_one")["num_accelerators"] == 6
    # No profile has a part of a board.
    for part in (1, 5, 7):
        profile = compute.make_profile(whole("CUSTOM_ONE", part))
        assert compute.schedule(profile, models.new_uuid()) is None, part
    guests, instances = {}, {}
    for board in ("one", "two"):
        profile = compute.make_profile(whole(f"CUSTOM_{board.upper()}", 6))
        instances[profile] = models.new_uuid()
        guests[board] = in_guest(compute, compute.boot(profile, instances[profile]))
        # Of a board nothing is left for anybody else.
        assert compute.schedule(profile, models.new_uuid()) is None

    for board, functions in guests.items():
        assert sorted(functions) == addresses(HGX, board)
    assert not set(guests["one"]) & set(guests["two"])
    # It comes back as a whole.
    compute.delete(instances[profile])
    hgx.site.hurry(hgx.site.idle)
    after = in_guest(compute, compute.boot(profile, models.new_uuid()))
    assert sorted(after) == addresses(HGX, "two")


#: Cards, their driver and its options; what is asked for, and the functions that come together.
#: The first one of a card of the Open FPGA Stack stays the host's, which manages it by that.
TOGETHER: dict[str, tuple[dict[str, Any], str, str, dict[str, str], tuple[int, ...]]] = {
    "a graphics card with its sound": (
        GRAPHICS,
        "pci_driver",
        '[pci]\ndevice_spec = {"vendor_id": "10de", "board": "b", "resource_class": "PGPU"}\n',
        whole("PGPU", 2),
        (0, 1),
    ),
    "an Alveo card": (
        {"card": "u250", "name": "u250"},
        "xilinx_fpga_driver",
        "",
        {"resources:FPGA": "1", "trait:CUSTOM_FPGA_XILINX": "required"},
        (0, 1),
    ),
    "an OFS card": (
        OFS,
        "pci_driver",
        "[pci]\n" + board_spec("{card}1", "ofs") + board_spec("{card}2", "ofs"),
        whole("CUSTOM_OFS", 2),
        (1, 2),
    ),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_functions_of_a_card_come_together(start_layouts, compute: Compute, case: str) -> None:
    shown, driver, text, group, functions = TOGETHER[case]
    card = addresses([shown], shown["name"])[0][:-1]
    start_layouts([shown], driver, text.replace("{card}", card))

    arqs = compute.boot(compute.make_profile(group), models.new_uuid())

    assert sorted(in_guest(compute, arqs)) == [f"{card}{number}" for number in functions]
