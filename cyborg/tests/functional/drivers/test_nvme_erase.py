# SPDX-License-Identifier: Apache-2.0
"""An NVMe controller is erased after use, by its own commands or by zeroes."""

from __future__ import annotations

from typing import Any

from cyborg.drivers import privileged
from cyborg.drivers.nvme import admin_commands
from cyborg.tests.contract import passes


def erase(address: str, keys: str = "") -> str:
    text = f'[nvme]\ndevice_spec = {{"vendor_id": "*"{keys}}}\n'
    return passes.clean("nvme_driver", text, address)


ZEROED = f"zero 0 {3750748848 * 512}"
SANITIZE, ZERO = ', "clear_action": "sanitize"', ', "clear_action": "zero"'


#: Cards, the operator's keys, and what is written to which device of the host's disk.
WAYS = [
    ("nvme-pm1733", "", "", "sanitize crypto"),
    ("nvme-pm1733", ', "clear_strategy": "block"', "", "sanitize block"),
    ("nvme-pm1733", f'{SANITIZE}, "clear_strategy": "crypto"', "", "sanitize crypto"),
    ("nvme-pm1733", ZERO, "n1", ZEROED),
    ("nvme-inspur", "", "", "sanitize block"),
    ("nvme-system", "", "n1", ZEROED),
    ("nvme-multipath", "", "", "sanitize crypto"),
    ("nvme-multipath", ZERO, "n1", ZEROED),
]


def test_a_controller_is_erased_in_the_way_that_is_wanted(simulate_live):
    cards = list(dict.fromkeys(card for card, *_ in WAYS))
    host = simulate_live({"cards": cards})

    for card, keys, _node, _written in WAYS:
        assert host.call(erase, host.card(card), keys) == "", (card, keys)
    assert host.writes() == [
        (f"/dev/nvme{cards.index(card)}{node}", written) for card, _keys, node, written in WAYS
    ]


def test_an_erasure_that_goes_on_is_not_begun_again_and_one_that_fails_is_told(simulate_live):
    ways = [{"asks": 2}, {"ends": "failed"}]
    host = simulate_live({"cards": [{"card": "nvme-inspur", "sanitize": way} for way in ways]})
    slow, failing = (host.card("nvme-inspur", number) for number in (0, 1))
    host.call(begin, slow)

    assert host.call(erase, slow) == ""
    assert host.writes() == [("/dev/nvme0", "sanitize block")]
    assert "failed to erase itself" in host.call(erase, failing)


def test_zeroes_do_not_erase_what_a_guest_has_hidden(simulate_live):
    """Who has the whole controller can detach namespaces from it, and attach them again."""
    cards: list[dict[str, Any]] = [
        {"sanitize": {"detached": 2}},
        # So it is for a while after a guest gave it back.
        {"nodes": {"nvme/nvme{n}/nvme{n}n1": None}},
        {"sanitize": {"detached": 0}},
    ]
    host = simulate_live({"cards": [{"card": "nvme-pm1733", **each} for each in cards]})

    def told(number: int) -> str:
        return host.call(erase, host.card("nvme-pm1733", number), ZERO)

    assert "has 2 namespaces that are not attached to it" in told(0)
    assert "shows no namespace" in told(1)
    assert host.writes() == []
    assert told(2) == ""
    assert host.writes() == [("/dev/nvme2n1", ZEROED)]


def begin(address: str) -> None:
    privileged.erasing.set_client_mode(False)
    privileged.nvme_sanitize(address, admin_commands.Sanitize.BLOCK)
