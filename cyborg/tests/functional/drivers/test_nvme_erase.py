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


ZEROED = [("/dev/nvme0n1", f"zero 0 {3750748848 * 512}")]


@pytest.mark.parametrize(
    ("card", "keys", "written"),
    [
        ("nvme-pm1733", "", [("/dev/nvme0", "sanitize crypto")]),
        ("nvme-pm1733", ', "clear_strategy": "block"', [("/dev/nvme0", "sanitize block")]),
        ("nvme-inspur", "", [("/dev/nvme0", "sanitize block")]),
        ("nvme-system", "", ZEROED),
        ("nvme-pm1733", ', "clear_action": "zero"', ZEROED),
        ("nvme-multipath", "", [("/dev/nvme0", "sanitize crypto")]),
        ("nvme-multipath", ', "clear_action": "zero"', ZEROED),
    ],
)
def test_a_controller_is_erased_in_the_way_that_is_wanted(simulate_live, card, keys, written):
    host = simulate_live({"cards": [card]})

    assert host.call(erase, host.card(card), keys) == ""
    assert host.writes() == written


def test_an_erasure_that_fails_is_told(simulate_live):
    host = simulate_live({"cards": [{"card": "nvme-inspur", "sanitize": {"ends": "failed"}}]})

    assert "failed to erase itself" in host.call(erase, host.card("nvme-inspur"))


def test_an_erasure_that_goes_on_is_not_begun_again(simulate_live):
    host = simulate_live({"cards": [{"card": "nvme-inspur", "sanitize": {"asks": 2}}]})
    card = host.card("nvme-inspur")
    host.call(begin, card)

    assert host.call(erase, card) == ""
    assert host.writes() == [("/dev/nvme0", "sanitize block")]


def test_a_controller_that_shows_no_namespace_is_not_erased_by_zeroes(simulate_live):
    """So it is for a while after a guest gave it back."""
    card = {"card": "nvme-pm1733", "nodes": {"nvme/nvme{n}/nvme{n}n1": None}}
    host = simulate_live({"cards": [card]})
    address = host.card("nvme-pm1733")

    assert "shows no namespace" in host.call(erase, address, ', "clear_action": "zero"')


@pytest.mark.parametrize(
    ("detached", "wrong", "written"),
    [(0, "", ZEROED), (2, "has 2 namespaces that are not attached to it", [])],
)
def test_zeroes_do_not_erase_what_a_guest_has_hidden(simulate_live, detached, wrong, written):
    """Who has the whole controller can detach namespaces from it, and attach them again."""
    host = simulate_live({"cards": [{"card": "nvme-pm1733", "sanitize": {"detached": detached}}]})

    told = host.call(erase, host.card("nvme-pm1733"), ', "clear_action": "zero"')

    assert (wrong in told, bool(told)) == (True, bool(wrong))
    assert host.writes() == written


def begin(address: str) -> None:
    privileged.erasing.set_client_mode(False)
    privileged.nvme_sanitize(address, admin_commands.Sanitize.BLOCK)
