# SPDX-License-Identifier: Apache-2.0
"""What is true of a card is read where the card is in its slot, though it has switches of its own.

Switches of the board stand in the same place, and are not the card's.
"""

from __future__ import annotations

import dataclasses

import pytest

from cyborg.drivers.pci import facts
from cyborg.tests.contract import driver as contract
from cyborg.tests.pci_functions import function

ROOT, BOARD, CARD, OWN = (
    ("0000:00:01.0", "0000:00:01.0"),
    ("0000:01:00.0", "0000:02:00.0"),
    ("0000:03:00.0", "0000:04:00.0"),
    ("0000:05:00.0", "0000:06:00.0"),
)
GPU = "0000:07:00.0"
PLX = "10b5"


def link(width: int, most: int = 16, speed: str = "16.0 GT/s PCIe") -> dict[str, object]:
    return {
        "current_link_speed": speed,
        "current_link_width": width,
        "max_link_speed": "16.0 GT/s PCIe",
        "max_link_width": most,
        "../max_link_speed": "16.0 GT/s PCIe",
        "../max_link_width": 16,
    }


DOWN = link(63, speed="Unknown")


def host(vendor, device, switches, files=()):
    """A GPU below a root port of its own vendor's, and switches, each with its vendor."""
    bridges = [ROOT[0], *(port for ports, _vendor in switches for port in ports)]
    makers = {ROOT[0]: vendor, **{port: maker for ports, maker in switches for port in ports}}
    gpu = function(GPU, vendor=vendor, device=device)
    above = [function(each, vendor=makers[each], class_code="060400") for each in bridges]
    shown = contract.Files(dict(files))
    shown.locations = {GPU: "/".join(("../../../devices/pci0000:00", *bridges, GPU))}
    return gpu, contract.snapshot([*above, gpu], shown)


#: Each with its vendor and device, the switches above it, the edge of its card, and its switch.
CARDS = {
    "Radeon": ("1002", "73a3", [(OWN, "1002")], OWN[0], None),
    "Radeon below the board's": ("1002", "73a3", [(BOARD, PLX), (OWN, "1002")], OWN[0], BOARD[0]),
    "Arc": ("8086", "56a0", [(OWN, "8086")], OWN[0], None),
    "Battlemage below it": ("8086", "e20b", [(BOARD, "11f8"), (OWN, "8086")], OWN[0], BOARD[0]),
    "Flex 140": ("8086", "56c1", [(CARD, PLX), (OWN, "8086")], CARD[0], CARD[0]),
    "A16": ("10de", "25b6", [(CARD, PLX)], CARD[0], CARD[0]),
    "A16 below the board's": ("10de", "25b6", [(BOARD, PLX), (CARD, PLX)], CARD[0], BOARD[0]),
    "H200": ("10de", "2335", [(BOARD, PLX)], GPU, BOARD[0]),
    "H200 below two": ("10de", "2335", [(BOARD, "1000"), (CARD, "15b3")], GPU, BOARD[0]),
    "MI300X": ("1002", "74a1", [(BOARD, PLX)], GPU, BOARD[0]),
    "no switch": ("1002", "73a3", [], GPU, None),
}


@pytest.mark.parametrize("card", CARDS)
def test_which_switches_are_the_cards(card):
    vendor, device, switches, edge, switch = CARDS[card]
    gpu, functions = host(vendor, device, switches)

    assert facts.ports_of_card(gpu, functions)[0] == edge
    assert facts.switch(gpu, functions) == switch


@pytest.mark.parametrize(
    ("own", "slot", "power", "seen"),
    [
        (link(16), link(4), "D0", ("16.0 GT/s x4", False)),
        (link(16), link(8, most=8), "D0", ("16.0 GT/s x8", True)),
        (link(8), link(16), "D0", ("16.0 GT/s x16", True)),
        (DOWN, link(16), "D0", None),
        (link(16), DOWN, "D0", None),
        (DOWN, DOWN, "D3cold", "asleep"),
        (link(16), {}, "D0", ("16.0 GT/s x16", True)),
    ],
)
def test_the_link_is_that_of_the_slot(own, slot, power, seen):
    files = {GPU: {**own, "power_state": power}, OWN[0]: slot}
    gpu, functions = host("1002", "73a3", [(OWN, "1002")], files)

    found = facts.required_link(gpu, functions)

    if seen == "asleep":
        assert found is None
        return
    assert found is not None
    assert found.is_up == (seen is not None)
    if seen is not None:
        now = f"{found.speed.removesuffix(' PCIe')} x{found.width}"
        assert (now, not found.is_narrow) == seen


def test_errors_and_the_serial_number_are_those_of_the_whole_card():
    files = {
        GPU: {"aer_dev_fatal": "TOTAL_ERR_FATAL 0\n"},
        OWN[0]: {"aer_dev_fatal": "TOTAL_ERR_FATAL 2\n", "serial_number": "00-11-22"},
        BOARD[0]: {"aer_dev_fatal": "TOTAL_ERR_FATAL 5\n", "serial_number": "ff-ff-ff"},
    }
    gpu, functions = host("1002", "73a3", [(BOARD, PLX), (OWN, "1002")], files)

    assert facts.errors(facts.ports_of_card(gpu, functions), functions, "fatal") == 2
    assert facts.attributes(gpu, functions)["serial"] == "00-11-22"
    # GPUs of one card do not share its serial number.
    gpu, functions = host("10de", "25b6", [(CARD, PLX)], {CARD[0]: {"serial_number": "00-11-22"}})
    assert "serial" not in facts.attributes(gpu, functions)


def test_a_file_of_the_cards_switch_that_holds_nothing_of_a_link_is_an_error():
    files = {OWN[0]: {**link(16), "current_link_width": "nonsense"}}
    gpu, functions = host("1002", "73a3", [(OWN, "1002")], files)

    with pytest.raises(ValueError, match=OWN[0]):
        facts.required_link(gpu, functions)


def test_an_a2_is_alone_on_its_card_though_it_has_the_id_of_an_a16():
    gpu, functions = host("10de", "25b6", [(BOARD, PLX)])
    alone = dataclasses.replace(gpu, subsystem_vendor="10de", subsystem_device="157e")
    assert facts.ports_of_card(alone, functions)[0] == GPU


def test_the_bridges_of_vega_10_are_its_own_though_they_are_of_the_processors_vendor():
    gpu, functions = host("1002", "687f", [(OWN, "1022")])
    ports = [
        dataclasses.replace(each, device=device)
        for each, device in zip((functions[name] for name in OWN), ("1470", "1471"), strict=True)
    ]
    others = [each for each in functions.values() if each.address not in OWN]
    shown = contract.Files({})
    shown.locations = {GPU: "/".join(("../../../devices/pci0000:00", ROOT[0], *OWN, GPU))}
    assert facts.ports_of_card(gpu, contract.snapshot([*others, *ports], shown))[0] == OWN[0]
    assert facts.ports_of_card(gpu, functions)[0] == GPU
