# SPDX-License-Identifier: Apache-2.0
"""Which parts NVIDIA cards can be divided into: mediated devices, or virtual functions with types.

Cards up to the A100 create mediated devices, the later of them on virtual functions. On newer
kernels and cards a virtual function is given a type instead. A card that is in MIG mode offers
types of its slices in the same two ways.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from oslo_config import cfg

from cyborg.conf import drivers as options
from cyborg.drivers import pci, pci_facts

LOG = logging.getLogger(__name__)

_MDEV = "mdev_supported_types"
_CREATABLE = "nvidia/creatable_vgpu_types"
_MAX_INSTANCE = re.compile(r"max_instance=(\d+)")
_FRAMEBUFFER = re.compile(r"framebuffer=(\d+)M")
_SIZE = re.compile(r"-(\d+)[A-Z]+$")
_SLICE = re.compile(r"-\d+-\d+[A-Z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one function of a card offers: so many virtual GPUs of a type.

    ``created`` are the uuids of its mediated devices; None where it has a type instead, which
    ``is_set`` if the function has been given it.
    """

    function: pci.Function
    type: str
    name: str | None
    total: int
    memory_mib: int | None
    created: tuple[str, ...] | None
    is_set: bool = False

    @property
    def is_taken(self) -> bool:
        """Whether anything has been made of it."""
        return self.is_set or bool(self.created)

    @property
    def is_slice(self) -> bool:
        """Whether the part has computing units of its own (MIG), not a share of time."""
        return self.name is not None and _SLICE.search(self.name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The type that the operator wants a function divided into.

    ``named`` says that the function was named, and is not just one of all.
    """

    type: str
    named: bool
    max_instances: int | None


class Wishes:
    """``[gpu_devices] enabled_vgpu_types`` with the sections of the types."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._everywhere: Wish | None = None
        self._of: dict[str, Wish] = {}
        types = list(dict.fromkeys(conf.gpu_devices.enabled_vgpu_types))
        for name in types:
            section = options.register_vgpu_type(conf, name)
            limit = section.max_instances
            if not section.device_addresses and len(types) == 1:
                self._everywhere = Wish(type=name, named=False, max_instances=limit)
            elif not section.device_addresses:
                LOG.error(
                    "vGPU type %s is not used: of several types each needs device_addresses in "
                    "[vgpu_%s]",
                    name,
                    name,
                )
            for address in section.device_addresses:
                wish = Wish(type=name, named=True, max_instances=limit)
                kept = self._of.setdefault(address.strip().lower(), wish)
                if kept is not wish:
                    LOG.error(
                        "%s is to be of vGPU types %s and %s; it becomes %s",
                        address,
                        kept.type,
                        name,
                        kept.type,
                    )

    def __bool__(self) -> bool:
        """Whether any function is to be divided."""
        return self._everywhere is not None or bool(self._of)

    def of_address(self, address: str) -> Wish | None:
        """What is wanted of that function by its own address."""
        return self._of.get(address)

    def of(self, function: pci.Function) -> Wish | None:
        """What is wanted of a function; what is wanted of a card holds for its parts."""
        return self._of.get(function.address) or self._of.get(function.pf or "") or self._everywhere


class Types:
    """Names of types by card and number. A card tells them only while it has room."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}

    def learn(self, function: pci.Function, functions: pci.Snapshot) -> None:
        """Remember what a virtual function lists."""
        text = functions.text(function.address, _CREATABLE) or ""
        for line in text.splitlines():
            number, colon, name = line.partition(":")
            if colon and number.strip().isdigit():
                self._names[function.device, number.strip()] = name.strip()

    def name(self, function: pci.Function, number: str) -> str | None:
        """The name of a type, if any card of the kind has told it."""
        return self._names.get((function.device, number))


def parts(
    card: pci.Function,
    functions: pci.Snapshot,
    wishes: Wishes,
    types: Types,
    mine: Set[str],
) -> list[Part] | None:
    """What a card is divided into, as many as fit on it; None where it is to stay whole.

    Functions that are not ``mine`` to give out take room only where they have some already.

    :raises OSError: it cannot be told
    """
    found: list[Part] = []
    wanted = False
    for function in [card, *(functions[vf] for vf in card.vfs)]:
        wish = wishes.of(function)
        if wish is None:
            continue
        part = _mediated(function, functions, wish) or _typed(function, functions, wish, types)
        # A card that has not the type that all are to have, if they can, stays whole.
        wanted = wanted or wish.named or part is not None
        if part is not None and part.total and (function.address in mine or part.is_taken):
            found.append(part)
    if not wanted:
        return None
    fitting = _as_many_as_fit(card, functions, found, wishes)
    return [part for part in fitting if part.function.address in mine]


def lacking(card: pci.Function, functions: pci.Snapshot, wishes: Wishes) -> str | None:
    """What has to be done to a card that is to be divided before it can be, or None.

    Newer cards say which types they have once they have virtual functions.
    """
    if card.vfs or not card.sriov_totalvfs or "vfio" in (card.driver or ""):
        return None
    if functions.names(card.address, _MDEV):
        return None
    named = (wishes.of_address(place) for place in (card.address, *_places(card, functions)))
    wish = next((found for found in named if found is not None), None)
    if wish is None:
        wish = wishes.of(card)
        # Each type is of one product. If another has it, this one has not.
        if wish is None or _is_of_another(card, functions, wish.type):
            return None
    return (
        f"GPU {card.address} is not offered: it may have to be divided into {wish.type}, and has "
        "no virtual functions yet; run sriov-manage, or name other cards in device_addresses"
    )


def _places(card: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
    """The addresses that a card's virtual functions will have."""
    place = pci.split(card.address)
    number = int(place["bus"], 16) << 8 | int(place["device"], 16) << 3 | int(place["function"])
    number += functions.number(card.address, "sriov_offset") or 0
    stride = functions.number(card.address, "sriov_stride") or 1
    for each in range(number, number + card.sriov_totalvfs * stride, stride):
        yield f"{place['domain']}:{each >> 8:02x}:{each >> 3 & 31:02x}.{each & 7}"


def _is_of_another(card: pci.Function, functions: pci.Snapshot, kind: str) -> bool:
    for function in functions.of_vendor(card.vendor):
        if functions.get(function.pf or "", function).device != card.device:
            creatable = functions.text(function.address, _CREATABLE) or ""
            numbers = (line.partition(":")[0].strip() for line in creatable.splitlines())
            mediated = functions.names(function.address, _MDEV)
            if kind in mediated or kind.removeprefix("nvidia-") in numbers:
                return True
    return False


def short(name: str) -> str:
    """``A100_40C`` of ``NVIDIA A100-40C``."""
    return name.partition(" ")[2].replace("-", "_") or name


def _mediated(function: pci.Function, functions: pci.Snapshot, wish: Wish) -> Part | None:
    kinds = {kind.id: kind for kind in pci_facts.mdev_types(function, functions)}
    kind = kinds.get(wish.type)
    if kind is None:
        return None
    memory = _FRAMEBUFFER.search(kind.description)
    return Part(
        function=function,
        type=kind.id,
        name=kind.name,
        # A virtual function holds one.
        total=kind.total if function.pf is None else min(1, kind.total),
        memory_mib=int(memory.group(1)) if memory else None,
        created=kind.created,
    )


def _typed(
    function: pci.Function, functions: pci.Snapshot, wish: Wish, types: Types
) -> Part | None:
    current = pci_facts.vgpu_type(function, functions)
    if current is None:
        return None
    types.learn(function, functions)
    number = wish.type.removeprefix("nvidia-")
    creatable = functions.text(function.address, _CREATABLE) or ""
    listed = {line.partition(":")[0].strip() for line in creatable.splitlines()}
    name = types.name(function, number)
    if current != number and number not in listed and name is None:
        return None
    size = _SIZE.search(name or "")
    return Part(
        function=function,
        type=number,
        name=name,
        total=int(current == number or (current == pci_facts.NO_VGPU_TYPE and number in listed)),
        memory_mib=int(size.group(1)) * 1024 if size else None,
        created=None,
        is_set=current == number,
    )


def _as_many_as_fit(
    card: pci.Function, functions: pci.Snapshot, found: list[Part], wishes: Wishes
) -> list[Part]:
    """Each virtual function says that it has room, but they share one card.

    Those that guests may have come first, so that none of them is lost to one that is free.
    """
    counted: dict[str, int] = {}
    fitting = []
    for part in sorted(found, key=lambda part: not part.is_taken):
        limit = _limit(card, functions, part, wishes)
        counted[part.type] = counted.get(part.type, 0) + 1
        fits = part.function.pf is None or limit is None or counted[part.type] <= limit
        if fits or part.is_taken:
            fitting.append(part)
    return sorted(fitting, key=found.index)


def _limit(card: pci.Function, functions: pci.Snapshot, part: Part, wishes: Wishes) -> int | None:
    wish = wishes.of(part.function)
    if wish is not None and wish.max_instances is not None:
        return wish.max_instances
    path = f"mdev_supported_types/{part.type}/description"
    told = _MAX_INSTANCE.search(functions.text(part.function.address, path) or "")
    if told:
        return int(told.group(1))
    memory = memory_mib(card, functions)
    if memory and part.memory_mib:
        return max(1, memory // part.memory_mib)
    return None


def memory_mib(card: pci.Function, functions: pci.Snapshot) -> int | None:
    """A card's memory, which only its name tells without a library of the vendor's."""
    for name in (information(card, functions).get("Model"), functions.product(card)):
        size = re.search(r"(\d+) ?GB", name or "")
        if size:
            return int(size.group(1)) * 1024
    return None


@pci.once
def information(card: pci.Function, functions: pci.Snapshot) -> Mapping[str, str]:
    """What the vendor's driver tells of a card that it has."""
    path = f"/proc/driver/nvidia/gpus/{card.address}/information"
    text = functions.text(card.address, path) or ""
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _colon, value in pairs if value.strip()}
