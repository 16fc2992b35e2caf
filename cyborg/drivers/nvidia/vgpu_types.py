# SPDX-License-Identifier: Apache-2.0
"""The vGPU types: their names, sizes, and how many of each fit on a card.

A card shows its types only while there is room for more, so what it has shown is kept, and outlives
the agent. The vendor's list of types, if it is installed, has all of them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import pathlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cyborg.drivers import kept_facts, pci
from cyborg.drivers.pci import facts

LOG = logging.getLogger(__name__)

#: The vendor's list, of the package with the vGPU manager.
VENDORS_LIST = pathlib.Path("/usr/share/nvidia/vgpu/vgpuConfig.xml")

_VENDOR = "10de"
_CREATABLE = "nvidia/creatable_vgpu_types"
_SIZE = re.compile(r"-(\d+)[A-Z]+$")
_SLICE = re.compile(r"-(\d+)-(\d+)[A-Z]")
#: A card has so many slices of compute units.
_SLICES = 7
#: And its memory so many.
_MEMORY_SLICES = 8
#: What the names of types end in: for computing only, and for that with the card's media engines.
_COMPUTE, _MEDIA = "C", "CME"
_NAMES, _MEMORY = "vgpu_types", "vgpu_memory_mib"
#: The kind of the kept facts: the names of a product's mediated devices, by type.
_MEDIATED = "mediated_types"
_MDEV = "mdev_supported_types"
#: In the vendor's list: any card with the device id.
_ANY_SUBSYSTEM = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _VendorsList:
    """Names by the number of a type, and the most of a type by card: device, subsystem, number."""

    names: Mapping[str, str]
    most: Mapping[tuple[int, int, str], int]


class Instance(NamedTuple):
    """A GPU instance (MIG): slices of a card, their memory, and how many parts share its time."""

    slices: int
    memory_gb: int
    parts: int


class TypeBook:
    """Types by card and number. What is learned is written when the driver is asked to remember."""

    def __init__(self, kept: kept_facts.KeptFacts) -> None:
        self._kept = kept

    def learn(self, card: pci.Function, functions: pci.Snapshot) -> None:
        """Keep what the virtual functions of a card show of its types."""
        sizes: list[int] = []
        in_use = False
        for vf in (functions[address] for address in card.vfs):
            current = facts.vgpu_type(vf, functions)
            if current is None:
                continue
            in_use = in_use or current != facts.NO_VGPU_TYPE
            for number, name in creatable(vf, functions):
                self._kept.set(_NAMES, f"{_product(card)} {number}", name)
                sizes += [] if is_slice(name) else [size_mib(name) or 0]
        # A type in use takes room, so the largest that can be created is less than the card has.
        if not in_use and any(sizes):
            self._kept.set(_MEMORY, _product(card), max(sizes))

    def learn_mediated(self, functions: pci.Snapshot) -> None:
        """Keep the types of mediated devices that cards show themselves."""
        for card in functions.of_vendor(_VENDOR):
            # One that has just vanished, or is broken, must not fail the others.
            with contextlib.suppress(pci.Vanished, OSError):
                kinds = functions.names(card.address, _MDEV) if card.pf is None else ()
                if kinds:
                    shown = {
                        each: functions.text(card.address, f"{_MDEV}/{each}/name") or each
                        for each in kinds
                    }
                    self._kept.set(_MEDIATED, _product(card), shown)

    def mediated(self, card: pci.Function) -> Mapping[str, str]:
        """The names by type of the mediated devices that a product has shown; none if never."""
        kept = self._kept.get(_MEDIATED, _product(card))
        return kept if isinstance(kept, dict) else {}

    def is_of_another(self, card: pci.Function, kind: str) -> bool:
        """True if another product has shown the type of mediated devices."""
        kept = self._kept.all(_MEDIATED).items()
        return any(product != _product(card) and kind in kinds for product, kinds in kept)

    def name(self, card: pci.Function, number: str) -> str | None:
        """The name of a type, or None if nothing has shown it yet."""
        kept = self._kept.get(_NAMES, f"{_product(card)} {number}")
        return kept if isinstance(kept, str) else _vendors_list().names.get(number)

    def known(self, card: pci.Function) -> dict[str, str]:
        """The names of the types that a card is known to have, by number."""
        before = f"{_product(card)} "
        kept = self._kept.all(_NAMES).items()
        shown = {key.removeprefix(before): name for key, name in kept if key.startswith(before)}
        names = _vendors_list().names
        listed = {number: names[number] for number in _listed(card) if number in names}
        return {**listed, **{key: name for key, name in shown.items() if isinstance(name, str)}}

    def most(self, card: pci.Function, number: str) -> int | None:
        """The number of a type that fit on a card by the vendor's list, or None."""
        most = _vendors_list().most
        device, subsystem = int(card.device, 16), int(card.subsystem_device, 16)
        found = most.get((device, subsystem, number))
        return found or most.get((device, _ANY_SUBSYSTEM, number))

    def fit(
        self, card: pci.Function, number: str, name: str, of_card: int | None, size: int | None
    ) -> int | None:
        """The number of a type of that name that fit on a card, or None if it is unknown.

        ``of_card`` and ``size`` are the MiB of the card and of one of the type, if these are known.
        """
        most = self.most(card, number)
        if most is not None:
            return most
        memory = of_card or self.memory_mib(card)
        if not memory or not size:
            return None
        if not is_slice(name):
            return max(1, memory // size)
        if name.endswith(_MEDIA):
            return 1  # the card's media engines are in one instance
        instance = instance_of(name, self.known(card).values())
        if instance is None:
            return None
        # The names round: three slices of 141 GB are called 71 GB, and two of them fit.
        units = max(1, round(instance.memory_gb * 1024 * _MEMORY_SLICES / memory))
        instances = max(1, min(_MEMORY_SLICES // units, _SLICES // instance.slices))
        return instances * instance.parts

    def memory_mib(self, card: pci.Function) -> int | None:
        """The memory of a card by the largest type that it has shown, or None."""
        kept = self._kept.get(_MEMORY, _product(card))
        return kept if isinstance(kept, int) and kept > 0 else None


def creatable(function: pci.Function, functions: pci.Snapshot) -> Iterator[tuple[str, str]]:
    """Number and name of each type that a virtual function could be given now.

    :raises OSError, ValueError: they cannot be read
    """
    for line in functions.required(function.address, _CREATABLE).splitlines():
        number, colon, name = line.partition(":")
        if not colon:
            raise ValueError(f"{_CREATABLE} of {function.address} has a line {line[:40]!r}")
        if number.strip().isdigit():
            yield number.strip(), name.strip()


def size_mib(name: str | None) -> int | None:
    """The memory of a type by its name, or None if the name does not say it."""
    size = _SIZE.search(name or "")
    return int(size.group(1)) * 1024 if size and len(size.group(1)) < 6 else None


def is_slice(name: str | None) -> bool:
    """True if a type has compute units of its own (MIG), not a share of time."""
    return slice_of(name) is not None


def slice_of(name: str | None) -> tuple[int, int] | None:
    """The slices of a card that a type has, and the GB of their memory; None if it has none."""
    found = _SLICE.search(name or "")
    return (int(found.group(1)), int(found.group(2))) if found else None


def instance_of(name: str | None, known: Iterable[str]) -> Instance | None:
    """The GPU instance that a type has or shares; None for a type that is no slice.

    ``known`` are the names of the card's types. Only cards whose slices have graphics can share
    them: then the largest type of so many slices has the instance for itself.
    """
    own = slice_of(name)
    if own is None or name is None:
        return None
    slices, size = own
    known = [each for each in known if is_slice(each) and not each.endswith(_MEDIA)]
    if name.endswith(_MEDIA) or all(each.endswith(_COMPUTE) for each in known):
        return Instance(slices, size, 1)
    like = (
        slice_of(each)
        for each in known
        if each.endswith(_COMPUTE) == name.endswith(_COMPUTE)
    )
    largest = max((found[1] for found in like if found and found[0] == slices), default=size)
    return Instance(slices, largest, max(1, largest // size))


def _listed(card: pci.Function) -> list[str]:
    """The numbers of a card's types in the vendor's list."""
    subsystems = {int(card.subsystem_device, 16), _ANY_SUBSYSTEM}
    device = int(card.device, 16)
    most = _vendors_list().most
    return [number for its, subsystem, number in most if its == device and subsystem in subsystems]


def _product(card: pci.Function) -> str:
    return f"{card.device}:{card.subsystem_vendor}:{card.subsystem_device}"


def _vendors_list() -> _VendorsList:
    try:
        changed = VENDORS_LIST.stat().st_mtime_ns
    except OSError:
        return _VendorsList(names={}, most={})
    return _read(VENDORS_LIST, changed)


@functools.lru_cache(maxsize=4)
def _read(path: pathlib.Path, changed: int) -> _VendorsList:
    """The vendor's list. ``changed`` is the file's time stamp, so a new file is read again."""
    try:
        root = ET.parse(path).getroot()  # noqa: S314 - a file of root's, from the vendor's package
        return _VendorsList(
            names={each.attrib["id"]: each.attrib["name"] for each in root.iter("vgpuType")},
            most={key: most for card in root.iter("pgpu") for key, most in _types_of(card)},
        )
    except (OSError, ET.ParseError, KeyError, ValueError) as exc:
        LOG.warning("%s is ignored: %r", path, exc)
        return _VendorsList(names={}, most={})


def _types_of(card: ET.Element) -> Iterator[tuple[tuple[int, int, str], int]]:
    for ids in card.iter("devId"):
        place = int(ids.attrib["deviceId"], 16), int(ids.attrib["subsystemId"], 16)
        for supported in card.iter("supportedVgpu"):
            most = supported.findtext("maxVgpus")
            if most:
                yield (*place, supported.attrib["vgpuId"]), int(most)
