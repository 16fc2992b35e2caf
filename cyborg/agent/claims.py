# SPDX-License-Identifier: Apache-2.0
"""Which driver may report which PCI function: settled before a pass, and checked after it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cyborg.agent import attempt
from cyborg.drivers import base, pci

LOG = logging.getLogger(__name__)

#: How exactly a driver means each PCI function that it means.
Claims = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What drivers claim, those that did not end to say so in time, and why others cannot say."""

    told: Mapping[str, Claims]
    silent: Mapping[str, attempt.Attempt[Claims]]
    errors: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """The driver of each function that any driver claims, and a sentence for each loser of a tie.

    A driver that loses to one that means the function more exactly is no loser: so it is meant.
    """

    of: Mapping[str, str]
    ties: Mapping[str, str]

    def foreign_to(self, driver: str) -> frozenset[str]:
        """The functions that other drivers report."""
        return frozenset(address for address, owner in self.of.items() if owner != driver)


def ask(
    drivers: Mapping[str, base.Claiming], functions: pci.Snapshot, patience: float
) -> Answers:
    """What each driver claims that says so within ``patience`` seconds."""
    calls = {
        name: functools.partial(_claimed, driver, functions) for name, driver in drivers.items()
    }
    told: dict[str, Claims] = {}
    silent: dict[str, attempt.Attempt[Claims]] = {}
    errors: dict[str, str] = {}
    for name, call in attempt.each("claims", calls, patience).items():
        if not call.done(0):
            LOG.error("Driver %s does not end to say which PCI functions it means", name)
            silent[name] = call
        elif call.value is None:
            errors[name] = call.error or ""
        else:
            told[name] = call.value
    return Answers(told=told, silent=silent, errors=errors)


def settle(told: Mapping[str, Claims]) -> Owners:
    """Give each function to the driver that claims it most exactly, among equals to the first."""
    best: dict[str, tuple[int, str]] = {}
    tied: dict[tuple[str, str], list[str]] = {}
    for name, claimed in told.items():
        for address, exactness in claimed.items():
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


def of_devices(
    devices: Iterable[base.Device], functions: Mapping[str, pci.Function]
) -> Iterator[tuple[base.Device, set[str]]]:
    """Each device with what may exist only once on a host.

    That is its control path, the names of its deployables, and the PCI functions it gives out;
    whoever has a physical function has its virtual ones.
    """
    for device in devices:
        path = device.control_path
        claims = {f"{path.cpid_type} {base.canonical_json(dict(path.cpid_info))}"}
        for deployable in device.deployables:
            claims.add(f"deployable {deployable.name}")
            for handle in deployable.attach_handles:
                claims.update(_functions_of(handle, functions))
        yield device, claims


def given_twice(device: base.Device) -> str | None:
    """A PCI function that a device gives out by two handles, whatever else these tell."""
    given: set[str] = set()
    for deployable in device.deployables:
        for handle in deployable.attach_handles:
            address = _address(handle) if handle.attach_type == "PCI" else None
            if address is None:
                continue
            if address in given:
                return address
            given.add(address)
    return None


def _claimed(driver: base.Claiming, functions: pci.Snapshot) -> Claims:
    """What a driver claims, which others can be compared with."""
    claimed: dict[Any, Any] = dict(driver.claims(functions))
    for address, exactness in claimed.items():
        if not isinstance(address, str) or not isinstance(exactness, int):
            raise TypeError(f"claims() returned {address!r}: {exactness!r}, not address and number")
    return claimed


def _sentence(winner: str, addresses: list[str]) -> str:
    more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
    return (
        f"PCI function {min(addresses)}{more} is left to driver {winner}, which means it as "
        "exactly and comes first in enabled_drivers"
    )


def _functions_of(
    handle: base.AttachHandle, functions: Mapping[str, pci.Function]
) -> Iterator[str]:
    address = _address(handle) if handle.attach_type != "TEST_PCI" else None
    if address is None:
        return
    yield f"PCI function {address}"
    if handle.attach_type == "PCI" and address in functions:
        yield from (f"PCI function {vf}" for vf in functions[address].vfs)


def _address(handle: base.AttachHandle) -> str | None:
    """The PCI function of a handle, which for a mediated device is its parent, if it is told."""
    try:
        return pci.join(handle.attach_info).lower()
    except KeyError:
        return None
