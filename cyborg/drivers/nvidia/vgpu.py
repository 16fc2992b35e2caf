# SPDX-License-Identifier: Apache-2.0
"""The parts that NVIDIA cards are divided into: mediated devices, or virtual functions with types.

Cards up to the A100 have mediated devices, the newer of them on virtual functions. With newer
kernels and cards each virtual function gets a type instead. A card in MIG mode offers types of its
slices in the same two ways.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from oslo_config import cfg

from cyborg.conf import drivers as options
from cyborg.drivers import pci
from cyborg.drivers.nvidia import vgpu_types
from cyborg.drivers.nvidia.vgpu_types import TypeBook, creatable
from cyborg.drivers.pci import facts

LOG = logging.getLogger(__name__)

#: Where the vendor's driver shows its cards.
PROC = "/proc/driver/nvidia"
_MDEV = "mdev_supported_types"
_MAX_INSTANCE = re.compile(r"max_instance=(\d+)")
LACKS_DRIVER = "shows no types; load the vendor's vGPU driver"
_FRAMEBUFFER = re.compile(r"framebuffer=(\d+)M")


@dataclass(frozen=True, slots=True, kw_only=True)
class VgpuPart:
    """The virtual GPUs of one type that one function of a card offers.

    ``created`` are the uuids of its mediated devices, or None if the virtual function itself gets
    the type; ``is_set`` says that it has the type now.
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
        """True if a virtual GPU exists on it."""
        return self.is_set or bool(self.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnabledType:
    """The vGPU type that the operator wants for a function.

    ``named`` says that the operator gave the function's address, and not a type for all cards.
    """

    type: str
    named: bool
    max_instances: int | None


class EnabledTypes:
    """``[gpu_devices] enabled_vgpu_types`` with the sections of the types.

    ``known`` is what is known of types.
    """

    def __init__(self, conf: cfg.ConfigOpts, known: TypeBook) -> None:
        self.known = known
        self._everywhere: EnabledType | None = None
        #: By the addresses that the operator gave.
        self.by_address: dict[str, EnabledType] = {}
        types = list(dict.fromkeys(conf.gpu_devices.enabled_vgpu_types))
        for name in types:
            section = options.register_vgpu_type(conf, name)
            limit = section.max_instances
            if not section.device_addresses and len(types) == 1:
                self._everywhere = EnabledType(type=name, named=False, max_instances=limit)
            elif not section.device_addresses:
                LOG.error(
                    "vGPU type %s is not used: of several types each needs device_addresses in "
                    "[vgpu_%s]",
                    name,
                    name,
                )
            for address in section.device_addresses:
                enabled = EnabledType(type=name, named=True, max_instances=limit)
                kept = self.by_address.setdefault(address.strip().lower(), enabled)
                if kept is not enabled:
                    LOG.error(
                        "%s is to be of vGPU types %s and %s; it becomes %s",
                        address,
                        kept.type,
                        name,
                        kept.type,
                    )

    def __bool__(self) -> bool:
        """True if any function is to be divided."""
        return self._everywhere is not None or bool(self.by_address)

    def of(self, function: pci.Function) -> EnabledType | None:
        """The type for a function; a card's type is also for its virtual functions."""
        named = self.by_address
        return named.get(function.address) or named.get(function.pf or "") or self._everywhere


def parts(
    card: pci.Function, functions: pci.Snapshot, enabled_types: EnabledTypes, mine: Set[str]
) -> list[VgpuPart] | None:
    """The parts of a card, as many as fit on it; None if it stays whole.

    Functions that are not in ``mine`` count only if a virtual GPU exists on them: it takes room.

    :raises OSError: the types cannot be read
    """
    found: list[VgpuPart] = []
    wanted = False
    enabled_types.known.learn(card, functions)
    for function in [card, *(functions[vf] for vf in card.vfs)]:
        enabled = enabled_types.of(function)
        if enabled is None:
            continue
        part = _mediated(function, functions, enabled)
        part = part or _typed(function, functions, enabled, enabled_types.known)
        # A card without the type that is for all cards stays whole.
        wanted = wanted or enabled.named or part is not None
        if part is not None and part.total and (function.address in mine or part.is_taken):
            found.append(part)
    if not wanted:
        return None
    limit = functools.partial(_limit, card, functions, enabled_types)
    return [part for part in _as_many_as_fit(found, limit) if part.function.address in mine]


def why_not_divisible(
    card: pci.Function, functions: pci.Snapshot, enabled_types: EnabledTypes
) -> str | None:
    """Why a card cannot be divided yet although the operator may want it, or None.

    Newer cards show their types only on virtual functions that have the vendor's driver, older ones
    themselves, while they have it.
    """
    if card.has_guest_driver or functions.names(card.address, _MDEV):
        return None
    if not card.sriov_totalvfs:
        return _why_not_shown(card, functions, enabled_types.of(card), enabled_types.known)
    addresses = (card.address, *(card.vfs or _future_addresses(card, functions)))
    if any(functions[vf].driver is not None for vf in card.vfs):
        return None
    named = map(enabled_types.by_address.get, addresses)
    enabled = next((found for found in named if found is not None), None)
    if enabled is None:
        enabled = enabled_types.of(card)
        # A type belongs to one product. If another product has it, this one does not.
        if enabled is None or _is_of_another(card, functions, enabled.type):
            return None
    lacking = (
        "its virtual functions have no driver yet; load the vendor's vGPU driver"
        if card.vfs
        else "has no virtual functions yet; run sriov-manage"
    )
    return _not_offered(card, enabled, lacking)


def _why_not_shown(
    card: pci.Function, functions: pci.Snapshot, enabled: EnabledType | None, types: TypeBook
) -> str | None:
    """Why a card without SR-IOV that shows no types may have the enabled one, or None."""
    if enabled is None or enabled.named:
        return None
    known = types.mediated(card)
    if known and enabled.type not in known:
        return None
    if not known and (
        card.driver is not None
        or types.is_of_another(card, enabled.type)
        or _is_of_another(card, functions, enabled.type)
    ):
        return None
    return _not_offered(card, enabled, LACKS_DRIVER)


def _not_offered(card: pci.Function, enabled: EnabledType, lacking: str) -> str:
    return (
        f"GPU {card.address} is not offered: it may have to be divided into {enabled.type}, and "
        f"{lacking}, or name other cards in device_addresses"
    )


def _future_addresses(card: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
    """The addresses that a card's virtual functions will have."""
    parts = pci.split(card.address)
    number = int(parts["bus"], 16) << 8 | int(parts["device"], 16) << 3 | int(parts["function"])
    number += functions.number(card.address, "sriov_offset") or 0
    stride = functions.number(card.address, "sriov_stride") or 1
    for each in range(number, number + card.sriov_totalvfs * stride, stride):
        yield f"{parts['domain']}:{each >> 8:02x}:{each >> 3 & 31:02x}.{each & 7}"


def _is_of_another(card: pci.Function, functions: pci.Snapshot, kind: str) -> bool:
    """True if a card of another product on this host has the type."""
    for function in functions.of_vendor(card.vendor):
        if functions.get(function.pf or "", function).device != card.device:
            # A card that cannot be read must not take this one along.
            with contextlib.suppress(OSError, ValueError):
                if kind in functions.names(function.address, _MDEV):
                    return True
                numbers = (number for number, _name in creatable(function, functions))
                if kind.removeprefix("nvidia-") in numbers:
                    return True
    return False


def most_instances(description: str) -> int | None:
    """The number of mediated devices of a type that fit on a card, by the type's description."""
    shown = _MAX_INSTANCE.search(description)
    return int(shown.group(1)) if shown else None


def short(name: str) -> str:
    """``A100_40C`` for ``NVIDIA A100-40C``."""
    return name.partition(" ")[2].replace("-", "_") or name


def _mediated(
    function: pci.Function, functions: pci.Snapshot, enabled: EnabledType
) -> VgpuPart | None:
    kinds = {kind.id: kind for kind in facts.mdev_types(function, functions)}
    kind = kinds.get(enabled.type)
    if kind is None:
        return None
    memory = _FRAMEBUFFER.search(kind.description)
    return VgpuPart(
        function=function,
        type=kind.id,
        name=kind.name,
        # A virtual function can have one mediated device.
        total=kind.total if function.pf is None else min(1, kind.total),
        memory_mib=int(memory.group(1)) if memory else None,
        created=kind.created,
    )


def _typed(
    function: pci.Function, functions: pci.Snapshot, enabled: EnabledType, types: TypeBook
) -> VgpuPart | None:
    current = facts.vgpu_type(function, functions)
    if current is None:
        return None
    number = enabled.type.removeprefix("nvidia-")
    listed = {each for each, _name in creatable(function, functions)}
    name = types.name(functions.get(function.pf or "", function), number)
    if current != number and number not in listed and name is None:
        return None
    return VgpuPart(
        function=function,
        type=number,
        name=name,
        total=int(current == number or (current == facts.NO_VGPU_TYPE and number in listed)),
        memory_mib=vgpu_types.size_mib(name),
        created=None,
        is_set=current == number,
    )


def _as_many_as_fit(
    found: Sequence[VgpuPart], limit: Callable[[VgpuPart, int], int | None]
) -> list[VgpuPart]:
    """The parts that fit on the card: each virtual function shows room, but they share it.

    Parts that guests may have come first, so that a free part never displaces one.
    """
    taken = Counter(part.type for part in found if part.is_taken)
    counted = Counter[str]()
    fitting = []
    for part in sorted(found, key=lambda part: not part.is_taken):
        most = limit(part, taken[part.type])
        counted[part.type] += 1
        fits = part.function.pf is None or most is None or counted[part.type] <= most
        if fits or part.is_taken:
            fitting.append(part)
    return sorted(fitting, key=found.index)


def _limit(
    card: pci.Function,
    functions: pci.Snapshot,
    enabled_types: EnabledTypes,
    part: VgpuPart,
    taken: int,
) -> int | None:
    """The number of parts of this type that fit on the card, or None if it is not known."""
    enabled = enabled_types.of(part.function)
    if enabled is not None and enabled.max_instances is not None:
        return enabled.max_instances
    path = f"{_MDEV}/{part.type}/description"
    shown = most_instances(functions.text(part.function.address, path) or "")
    if shown is not None:
        return shown
    number, memory = part.type.removeprefix("nvidia-"), memory_mib(card, functions)
    most = enabled_types.known.fit(card, number, part.name or "", memory, part.memory_mib)
    if most is not None:
        return most
    # The card says of each virtual function whether one more fits, and not how many.
    return taken + 1 if part.created is None else None


def memory_mib(card: pci.Function, functions: pci.Snapshot) -> int | None:
    """A card's memory by its name, as only a library of the vendor's shows it exactly."""
    for name in (information(card, functions).get("Model"), functions.product(card)):
        size = re.search(r"(\d+) ?GB", name or "")
        if size:
            return int(size.group(1)) * 1024
    return None


@pci.once
def information(card: pci.Function, functions: pci.Snapshot) -> Mapping[str, str]:
    """The facts that the vendor's driver shows about a card that it drives."""
    path = f"{PROC}/gpus/{card.address}/information"
    return parsed(functions.text(card.address, path) or "")


def parsed(text: str) -> dict[str, str]:
    """The facts of such a file."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _colon, value in pairs if value.strip()}
