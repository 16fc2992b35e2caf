# SPDX-License-Identifier: Apache-2.0
"""Layouts of NVIDIA cards whose virtual functions take vGPU types: one type for a whole card.

With a layout the first virtual functions of a card have its type, as many as fit, and the others
have none. The type of slices needs GPU instances of its MIG profile, which the vendor's tool makes:
one for each part, or for as many parts as share one in time.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from oslo_config import cfg

from cyborg.drivers import base, card_tools, pci, privileged, value_checks
from cyborg.drivers.nvidia import slices, vgpu
from cyborg.drivers.nvidia.vgpu_types import Instance, TypeBook, instance_of, size_mib, slice_of
from cyborg.drivers.pci import facts

LOG = logging.getLogger(__name__)

#: What a profile has besides its sizes, by the ending of the type: nothing for computing, the
#: card's media engines, and for all others graphics.
_ENGINES = {"C": "", "CME": "+me"}
_GRAPHICS = "+gfx"
_PROFILE = re.compile(r"([1-7])g\.(\d+)gb", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A layout that one card can have: so many virtual functions with the type of that number.

    ``mediated``: or so many mediated devices of the type with that id. ``instance`` is what the
    type has a part of, if it is one of slices.
    """

    name: str
    number: str
    kind: str
    count: int
    mediated: bool = False
    instance: Instance | None = None

    @property
    def profile(self) -> str | None:
        """The MIG profile of the GPU instances that it takes, such as ``1g.12gb``."""
        if self.instance is None:
            return None
        ending = self.kind.rpartition("-")[2].lstrip("0123456789")
        size = f"{self.instance.slices}g.{self.instance.memory_gb}gb"
        return size + _ENGINES.get(ending, _GRAPHICS)

    @property
    def instances(self) -> int:
        """The number of GPU instances that it takes."""
        return math.ceil(self.count / self.instance.parts) if self.instance is not None else 0


class Layouts:
    """``[gpu_devices] layouts``: names of types without the vendor, or of MIG profiles."""

    def __init__(self, conf: cfg.ConfigOpts, types: TypeBook) -> None:
        self._types = types
        named: list[str] = conf.gpu_devices.layouts
        self.names = [name for name in named if not slices.is_layout(name)]
        for name in self.names:
            try:
                value_checks.function_id(name)
            except ValueError as exc:
                raise ValueError(f"[gpu_devices] layouts: {exc}") from exc

    def __bool__(self) -> bool:
        """True if any card has layouts."""
        return bool(self.names)

    def why_unknown(self, card: pci.Function, functions: pci.Snapshot) -> str | None:
        """Why it cannot be told whether a card without SR-IOV has layouts, or None."""
        can_show = card.has_guest_driver or card.sriov_totalvfs
        if can_show or functions.names(card.address, "mdev_supported_types"):
            return None
        known = self._types.mediated(card)
        meant = any(is_meant(name, kind) for name in self.names for kind in known.values())
        if not (meant if known else card.driver is None):
            return None
        return (
            f"GPU {card.address} is not offered: it may have layouts, and "
            f"{vgpu.LACKS_DRIVER}, or exclude it in [gpu_devices] device_spec"
        )

    def of(self, card: pci.Function, functions: pci.Snapshot) -> tuple[Layout, ...]:
        """The layouts that a card can have; of two names for one type only the first."""
        known = self._types.known(card)
        memory = vgpu.memory_mib(card, functions)
        found: dict[str, Layout] = {}
        for name in self.names:
            meant = (each for each in known if is_meant(name, known[each]))
            number = min(meant, key=int, default=None)
            if number is None or number in found:
                continue
            kind = known[number]
            count = self._types.fit(card, number, kind, memory, size_mib(kind))
            if count is not None:
                count = min(count, len(card.vfs))
                found[number] = Layout(
                    name=name,
                    number=number,
                    kind=kind,
                    count=count,
                    instance=instance_of(kind, known.values()),
                )
        return tuple(found.values())


def named(name: str, layouts: Iterable[Layout]) -> Layout | None:
    """The layout of that name; hyphens and case do not count."""
    same = (each for each in layouts if value_checks.is_same_function(name, each.name))
    return next(same, None)


def handles(card: pci.Function, layout: Layout) -> tuple[base.AttachHandle, ...]:
    """The handles that guests get of a card with a layout."""
    return tuple(
        base.AttachHandle(
            attach_type="PCI", attach_info={**pci.split(vf), "asked_type": layout.number}
        )
        for vf in card.vfs[: layout.count]
    )


def attributes(layout: Layout) -> dict[str, str | int]:
    """The facts of each part of a card with a layout."""
    size = size_mib(layout.kind)
    return {"vgpu_type": layout.number, **({"memory_mib": size} if size else {})}


def why_none(card: pci.Function, functions: pci.Snapshot) -> str | None:
    """Why a card cannot have layouts, or None."""
    if not card.vfs:
        return "it has layouts and no virtual functions; run sriov-manage"
    if None in _types(card, functions).values():
        return "it has layouts, and not all of its virtual functions take vGPU types"
    return None


def shown(card: pci.Function, functions: pci.Snapshot, layouts: Iterable[Layout]) -> str:
    """The layout that a card has: numbers of types if it is none of these, empty if it has none.

    A virtual function may lack the type for a moment, while it is cleaned.
    """
    types = list(_types(card, functions).values())
    present = {number for number in types if number not in {None, facts.NO_VGPU_TYPE}}
    for layout in layouts:
        if present == {layout.number} and layout.number not in types[layout.count :]:
            return layout.name
    return "-".join(sorted(map(str, present)))


def give(
    conf: cfg.ConfigOpts,
    card: pci.Function,
    functions: pci.Snapshot,
    layout: Layout,
    target: base.ProgramTarget,
) -> None:
    """Give a card that layout. What guests of this layout have is not touched.

    :raises NothingWritten, NotPermitted: the card has what it had before
    :raises BeingWritten: a tool still writes the card
    :raises RuntimeError: the layout of the card is lost
    """
    before = _types(card, functions)
    card_tools.check_not_running(conf, card.address)
    target.check_permit()
    try:
        if layout.number not in before.values():
            _set(dict.fromkeys(card.vfs, facts.NO_VGPU_TYPE))
            _make_instances(conf, card, layout, target.until)
        _set(dict.fromkeys(card.vfs[: layout.count], layout.number))
        _set(dict.fromkeys(card.vfs[layout.count :], facts.NO_VGPU_TYPE))
    except base.BeingWritten:
        raise
    except Exception as exc:
        if not _is_put_back(card.address, before):
            raise RuntimeError(f"GPU {card.address} has lost its layout: {exc}") from exc
        if isinstance(exc, base.NothingWritten):
            raise
        raise base.NothingWritten(str(exc)) from exc


def give_again(address: str, number: str) -> None:
    """Give a virtual function its type after it was cleaned.

    If the card has lost its layout that fails, and the layout is given anew.
    """
    try:
        privileged.set_vgpu_type(address, number)
    except OSError as exc:
        LOG.warning("Virtual function %s is without vGPU type %s: %s", address, number, exc)


def _make_instances(
    conf: cfg.ConfigOpts, card: pci.Function, layout: Layout, until: float
) -> None:
    profile = layout.profile
    if profile is None:
        return
    asked = {"profiles": [profile] * layout.instances, "until": until, "beside": False}
    card_tools.run(conf, card.address, privileged.set_gpu_instances, **asked)


def _set(types: Mapping[str, str | None]) -> None:
    """Give virtual functions these types. Those that have them already are not touched."""
    for vf, number in types.items():
        privileged.set_vgpu_type(vf, number or facts.NO_VGPU_TYPE)


def _is_put_back(address: str, before: Mapping[str, str | None]) -> bool:
    """Give virtual functions the types that they had; whether they have them."""
    try:
        functions = pci.scan()
        now = _types(functions[address], functions)
        changed = {vf: number for vf, number in before.items() if now[vf] != number}
        _set(dict.fromkeys(changed, facts.NO_VGPU_TYPE))
        _set(changed)
    except (KeyError, OSError, ValueError) as exc:
        LOG.warning("Types of virtual functions cannot be put back: %r", exc)
        return False
    return True


def _types(card: pci.Function, functions: pci.Snapshot) -> dict[str, str | None]:
    """The number of the type of each virtual function of a card."""
    return {vf: facts.vgpu_type(functions[vf], functions) for vf in card.vfs}


def is_meant(layout: str, kind: str) -> bool:
    """True if a layout has the type of this name."""
    profile, slices = _PROFILE.fullmatch(layout), slice_of(kind)
    if profile is not None:
        wanted = (int(profile.group(1)), int(profile.group(2)))
        return wanted == slices and kind.endswith("C")
    name = vgpu.short(kind).replace("_", "-").replace(" ", "-")
    return value_checks.is_same_function(layout, name)
