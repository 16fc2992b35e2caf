# SPDX-License-Identifier: Apache-2.0
"""MIG instances of NVIDIA GPUs: slices that containers get by their device nodes.

The kernel's driver shows which compute instances there are, and NVIDIA's tool which profiles they
have. It is asked beside the passes, when others are there than before, and what it said is kept.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from oslo_config import cfg

from cyborg.drivers import base, card_tools, kept_facts, pci, privileged
from cyborg.drivers.nvidia import containers, vgpu
from cyborg.drivers.pci import sysfs

#: The kind of the kept facts: the profile of each compute instance of a card.
_KIND = "slices"
#: A line of ``mig -lci``: GPU, GPU instance, profile with its number, compute instance.
_ROW = re.compile(r"\|\s+\d+\s+(\d+)\s+MIG (\S+)\s+\d+\s+(\d+)\s", re.ASCII)
_INSTANCE = re.compile(r"(?:gi|ci)\d{1,3}", re.ASCII)
_PART = re.compile(r"([1-9]\d?)x(([1-7])g\.(\d{1,4})gb(\.me|\.gfx)?)", re.ASCII)
_SIZE = re.compile(r"\.(\d{1,4})gb", re.ASCII)
#: The slices of compute units and of memory of a card, and how much memory a profile has at least.
_COMPUTE, _MEMORY = 7, 8
_LEAST = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
#: Seconds after which it is asked again: one that was made anew may have the numbers of another.
_ASK_AGAIN = 600.0
#: The part by which the names of profiles may differ from the memory that they have.
_ROUNDED = 0.06

#: The profiles of a card's instances, by their numbers: those of the GPU and compute instance.
Profiles = Mapping[tuple[str, str], str | None]


class Slices:
    """The slices of the host's GPUs, and the layouts of them, such as ``1x3g.40gb_4x1g.10gb``."""

    def __init__(self, conf: cfg.ConfigOpts, kept: kept_facts.KeptFacts) -> None:
        self._conf = conf
        self._kept = kept
        self._names = [name for name in conf.gpu_devices.layouts if is_layout(name)]
        for name in self._names:
            if not _has_room(name, None):
                limit = f"{_COMPUTE} slices of compute and {_MEMORY} of memory"
                raise ValueError(f"[gpu_devices] layouts: {name} does not fit into {limit}")
            if name != (shown_as := _named(profile for _slices, _size, profile in _parts(name))):
                raise ValueError(f"[gpu_devices] layouts: write {name} as {shown_as}")
        #: When the tool was asked last about each card.
        self._asked: dict[str, float] = {}
        self._wanted: set[str] = set()
        self._asking: threading.Thread | None = None
        #: Why the tool has shown nothing, or None.
        self.problem: str | None = None

    def of(self, card: pci.Function) -> Profiles:
        """The profiles of a card's instances, as far as they are known.

        Those of a card with virtual functions are for guests.
        """
        found = _present(card.address) if card.driver == "nvidia" and not card.vfs else []
        kept = self._kept.get(_KIND, card.address) or {}
        profiles = {each: kept.get(" ".join(each)) for each in found}
        due = self._asked.get(card.address, -math.inf) + _ASK_AGAIN
        if found and (time.monotonic() > due or None in profiles.values()):
            self._wanted.add(card.address)
        return profiles

    def layouts(self, card: pci.Function, functions: pci.Snapshot) -> dict[str, int]:
        """The layouts that a card can have, with how many slices it has itself: none."""
        if card.driver != "nvidia" or card.vfs or not _folder(card.address):
            return {}
        memory = vgpu.memory_mib(card, functions)
        return dict.fromkeys((name for name in self._names if _has_room(name, memory)), 0)

    def ask(self) -> None:
        """Have the tool asked about the cards whose instances are not known."""
        if self._wanted and not (self._asking and self._asking.is_alive()):
            wanted, self._wanted = sorted(self._wanted), set()
            self._asking = threading.Thread(
                target=self._look, args=(wanted,), name="mig", daemon=True
            )
            self._asking.start()

    def _look(self, addresses: Sequence[str]) -> None:
        self.problem = None
        for address in addresses:
            try:
                self._read(address)
            except Exception as exc:  # noqa: BLE001 - whatever the helper raises; it is asked again
                self.problem = f"MIG instances of GPU {address} are not offered: {exc}"

    def _read(self, address: str) -> None:
        """Keep what the tool says of a card."""
        said = card_tools.run(self._conf, address, privileged.compute_instances)
        found = {f"{gpu} {own}": name for gpu, name, own in _ROW.findall(said)}
        if not found:
            raise ValueError(f"NVIDIA's tool has shown no compute instance of GPU {address}")
        self._kept.set(_KIND, address, found)
        self._kept.save()
        self._asked[address] = time.monotonic()

    def give(
        self, card: pci.Function, functions: pci.Snapshot, target: base.ProgramTarget
    ) -> base.Programmed:
        """Divide a card anew, unless it is divided so.

        Where instances of its layout are lost, those that are left stay: containers have them.
        While they have some, none is destroyed.

        :raises NothingWritten, NotPermitted: the card has what it had before
        :raises BeingWritten: a tool still writes the card
        """
        known = self.layouts(card, functions)
        name = card_tools.asked_layout(target, known, f"GPU {card.address}")
        wanted = Counter(profile for _slices, _size, profile in _parts(name))
        before = _present(card.address)
        try:
            if before:
                # The kept facts may be those of former instances with these numbers.
                self._read(card.address)
            present = Counter(map(_tools_name, map(str, self.of(card).values())))
            beside = present < wanted and _gpu_instances(card.address) == {gpu for gpu, _ in before}
            if target.restores and before and present != wanted and not beside:
                how = "destroy by hand the instances that are not of it"
                raise base.NothingWritten(f"layout: containers have slices of {name}; {how}")
            profiles = list((wanted - present if beside else wanted).elements())
            if present != wanted:
                asked = {"profiles": profiles, "until": target.until, "beside": beside}
                card_tools.run(self._conf, card.address, privileged.set_gpu_instances, **asked)
                self._read(card.address)
        except (OSError, ValueError) as exc:
            if _present(card.address) != before:
                raise
            raise base.NothingWritten(str(exc)) from exc
        return base.Programmed(function=shown(self.of(card)), verified_by="nvidia-smi mig -lci")


def is_layout(name: str) -> bool:
    """True if a layout is one of slices for containers: its profiles have counts."""
    return all(_PART.fullmatch(each) for each in name.split("_"))


def facts(profile: str) -> dict[str, str | int]:
    """The facts of each slice of a profile, such as ``3g.40gb`` or ``1c.3g.40gb``."""
    size = _SIZE.search(profile)
    return {"mig_profile": profile, **({"memory_mib": int(size[1]) * 1024} if size else {})}


def shown(profiles: Profiles) -> str | None:
    """The layout of a card with these instances; None if a profile is not known."""
    known = [each for each in profiles.values() if each is not None]
    return _named(known) if len(known) == len(profiles) else None


def alone(profiles: Profiles) -> Profiles:
    """Instances alone in their GPU instance: the others share its memory and its faults."""
    numbers = Counter(gpu for gpu, _own in profiles)
    return {each: name for each, name in profiles.items() if numbers[each[0]] == 1}


def _named(profiles: Iterable[str]) -> str:
    """The one name of the layout with these profiles."""
    numbers = Counter(each.replace("+", ".") for each in profiles)
    return "_".join(f"{numbers[each]}x{each}" for each in sorted(numbers, reverse=True))


def _parts(layout: str) -> list[tuple[int, int, str]]:
    """The slices of compute, the GB of memory and the profile of each instance, largest first."""
    found = [
        (int(part[3]), int(part[4]), _tools_name(part[2]))
        for part in map(_PART.fullmatch, layout.split("_"))
        if part
        for _ in range(int(part[1]))
    ]
    return sorted(found, reverse=True)


def _tools_name(profile: str) -> str:
    """A profile as NVIDIA's tool names it."""
    return profile.replace(".me", "+me").replace(".gfx", "+gfx")


def _has_room(layout: str, memory_mib: int | None) -> bool:
    """True if a card of so much memory, or of any, can have these instances at once.

    An instance begins at a multiple of its slices of memory, and a slice of compute is beside each
    but the last.
    """
    parts = _parts(layout)
    least = min(size / _LEAST.get(slices, _MEMORY) for slices, size, _name in parts)
    unit = memory_mib / 1024 / _MEMORY if memory_mib else least
    free = set(range(_MEMORY))
    media = sum(name.endswith("+me") for *_, name in parts)
    for slices, size, _name in sorted(parts, key=lambda part: (-part[1], -part[0])):
        need = round(size / unit)
        place = next((each for each in _places(slices, need) if each <= free), None)
        if place is None or abs(size / unit - need) > _ROUNDED * need:
            return False
        free -= place
    return media <= 1


def _places(slices: int, need: int) -> Iterator[set[int]]:
    """The slices of memory that an instance of so many slices may have, the last ones first."""
    for start in range(_MEMORY - need, -1, -1):
        if need in _LEAST.values() and start % need == 0 and start + slices <= _COMPUTE:
            yield set(range(start, start + need))


def _folder(address: str) -> str:
    """Where the kernel's driver shows the instances of a card; empty if it can have none."""
    root, minor = f"{vgpu.PROC}/capabilities", containers.information(address).get("Device Minor")
    return f"{root}/gpu{minor}/mig" if f"gpu{minor}" in sysfs.names(root) else ""


def _present(address: str) -> list[tuple[str, str]]:
    """The numbers of a card's GPU and compute instances."""
    place = _folder(address)
    found = [
        (int(gpu[2:]), int(own[2:]))
        for gpu in filter(_INSTANCE.fullmatch, sysfs.names(place) if place else ())
        for own in filter(_INSTANCE.fullmatch, sysfs.names(f"{place}/{gpu}"))
    ]
    return [(str(gpu), str(own)) for gpu, own in sorted(found)]


def _gpu_instances(address: str) -> set[str]:
    """The numbers of a card's GPU instances, of which some may have no compute instance yet."""
    return {gpu[2:] for gpu in sysfs.names(_folder(address)) if _INSTANCE.fullmatch(gpu)}
