# SPDX-License-Identifier: Apache-2.0
"""What the host itself uses is found, through whatever was built of it."""

from __future__ import annotations

import pytest

from cyborg.drivers import host_use, pci


def used() -> dict[str, str]:
    return dict(host_use.read())


def virtual_functions_by_card() -> dict[str, str | None]:
    return {address: function.pf for address, function in pci.scan().items()}


@pytest.mark.parametrize(
    ("host", "name", "reason"),
    [
        (
            {"cards": ["nvme-system"], "mounts": {"/": "nvme0n1p2"}},
            "nvme-system",
            "the host uses it for /",
        ),
        (
            {"cards": ["nvme-system"], "swaps": ["nvme0n1p1"]},
            "nvme-system",
            "the host uses it for swap",
        ),
        (
            {
                "cards": ["nvme-system"],
                "volumes": {"dm-0": ["nvme0n1p2"]},
                "mounts": {"/srv": "dm-0"},
            },
            "nvme-system",
            "the host uses it for /srv",
        ),
        (
            {"cards": ["x710"], "default_route": "ens1f0"},
            "x710",
            "the host's network interface ens1f0 is on it",
        ),
        (
            {"cards": ["x710"], "bridges": {"br0": ["ens1f0"]}},
            "x710",
            "its network interface ens1f0 is a port of the host's",
        ),
        (
            {"cards": ["x710"], "bridges": {"br0": ["ens1f0"]}, "default_route": "br0"},
            "x710",
            "the host's network interface br0 is on it",
        ),
    ],
    ids=["mounted", "swap", "volume", "route", "port", "bridge with a route"],
)
def test_the_card_below_is_used(simulate, host, name, reason):
    simulated = simulate(host)

    assert simulated.call(used) == {simulated.card(name): reason}


def test_what_nobody_uses_is_free(simulate):
    assert simulate({"cards": ["nvme-system", "x710"]}).call(used) == {}


def test_a_virtual_function_without_its_link_is_none_the_less_one(simulate):
    """As the kernel shows it for a moment while it makes them."""
    simulated = simulate({"cards": [{"card": "a100", "vfs": 2}, "t4"]})
    card = simulated.card("a100")
    vfs = simulated.vfs(card)
    simulated.files.unlink(f"{simulated.path(vfs[1])}/physfn")

    found = simulated.call(virtual_functions_by_card)

    assert {address for address, pf in found.items() if pf == card} == set(vfs)
    assert found[simulated.card("t4")] is None
