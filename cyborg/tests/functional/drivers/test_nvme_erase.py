# SPDX-License-Identifier: Apache-2.0
"""An NVMe controller is erased after use, by its own commands or by zeroes."""

from __future__ import annotations

import pytest

from cyborg.drivers import privileged
from cyborg.drivers.nvme import admin_commands
from cyborg.tests.contract import passes


def erase(address: str, keys: str = "") -> str:
    text = f'[nvme]\ndevice_spec = {{"vendor_id": "*"{keys}}}\n'
    return passes.clean("nvme_driver", text, address)


ZEROED = ("/dev/nvme0n1", f"zero 0 {3750748848 * 512}")


@pytest.mark.parametrize(
    ("card", "written"),
    [
        (
            "nvme-pm1733",
            {
                "": ("/dev/nvme0", "sanitize crypto"),
                ', "clear_strategy": "block"': ("/dev/nvme0", "sanitize block"),
                ', "clear_action": "zero"': ZEROED,
            },
        ),
        ("nvme-inspur", {"": ("/dev/nvme0", "sanitize block")}),
        ("nvme-system", {"": ZEROED}),
        (
            "nvme-multipath",
            {"": ("/dev/nvme0", "sanitize crypto"), ', "clear_action": "zero"': ZEROED},
        ),
    ],
)
def test_a_controller_is_erased_in_the_way_that_is_wanted(simulate_live, card, written):
    host = simulate_live({"cards": [card]})

    assert [host.call(erase, host.card(card), keys) for keys in written] == [""] * len(written)
    assert host.writes() == list(written.values())


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
    cards = [
        {"sanitize": {"detached": 2}},
        # So it is for a while after a guest gave it back.
        {"nodes": {"nvme/nvme{n}/nvme{n}n1": None}},
        {"sanitize": {"detached": 0}},
    ]
    host = simulate_live({"cards": [{"card": "nvme-pm1733", **each} for each in cards]})

    def told(number: int) -> str:
        return host.call(erase, host.card("nvme-pm1733", number), ', "clear_action": "zero"')

    assert "has 2 namespaces that are not attached to it" in told(0)
    assert "shows no namespace" in told(1)
    assert host.writes() == []
    assert told(2) == ""
    assert host.writes() == [("/dev/nvme2n1", ZEROED[1])]


def begin(address: str) -> None:
    privileged.erasing.set_client_mode(False)
    privileged.nvme_sanitize(address, admin_commands.Sanitize.BLOCK)
