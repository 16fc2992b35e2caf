# SPDX-License-Identifier: Apache-2.0
"""Which driver has which PCI function: the one that matches it most exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cyborg.drivers import base, pci

#: How exactly a driver matches each PCI function.
Exactness = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """The driver of each matched PCI function, and a sentence for each driver that lost a tie.

    A driver that loses to a more exact match gets no sentence: that is what the operator wants.
    """

    of: Mapping[str, str]
    ties: Mapping[str, str]

    def foreign_to(self, driver: str) -> frozenset[str]:
        """The functions that other drivers report."""
        return frozenset(address for address, owner in self.of.items() if owner != driver)


def of(driver: base.Matching, functions: pci.Snapshot) -> Exactness:
    """The claims of a driver.

    :raises TypeError: it is not comparable with that of others
    """
    matched: dict[Any, Any] = dict(driver.exactness(functions))
    for address, exactness in matched.items():
        if not isinstance(address, str) or not isinstance(exactness, int):
            raise TypeError(
                f"exactness() returned {address!r}: {exactness!r}, not address and number"
            )
    return matched


def assign(by_driver: Mapping[str, Exactness]) -> Owners:
    """Give each function to the driver that matches it most exactly, among equals to the first."""
    best: dict[str, tuple[int, str]] = {}
    tied: dict[tuple[str, str], list[str]] = {}
    for name, matched in by_driver.items():
        for address, exactness in matched.items():
            present = best.get(address)
            if present is None or exactness > present[0]:
                best[address] = (exactness, name)
                for pair in [pair for pair in tied if address in tied[pair]]:
                    tied[pair].remove(address)
            elif exactness == present[0]:
                tied.setdefault((name, present[1]), []).append(address)
    ties = {
        loser: _sentence(winner, addresses)
        for (loser, winner), addresses in tied.items()
        if addresses
    }
    return Owners(of={address: name for address, (_, name) in best.items()}, ties=ties)


def _sentence(winner: str, addresses: list[str]) -> str:
    more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
    return (
        f"PCI function {min(addresses)}{more} is left to driver {winner}, which means it as "
        "exactly and comes first in enabled_drivers"
    )
