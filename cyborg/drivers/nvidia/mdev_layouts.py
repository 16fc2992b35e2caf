# SPDX-License-Identifier: Apache-2.0
"""Layouts of NVIDIA cards with mediated devices: all of those on a card are of one type.

A mediated device is there only while a guest has it, so a card without any shows no layout. Then it
has the one that it was given last, which is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cyborg.drivers import base, mdev_handles, pci
from cyborg.drivers.nvidia import layouts as nvidia_layouts
from cyborg.drivers.nvidia import vgpu
from cyborg.drivers.nvidia.layouts import Layout
from cyborg.drivers.nvidia.vgpu_types import is_slice
from cyborg.drivers.pci import facts


def of(names: Iterable[str], card: pci.Function, functions: pci.Snapshot) -> tuple[Layout, ...]:
    """The layouts of these names that a card can have; of two names for one type only the first.

    The type of a slice is none: several of those may be on one card, each with its GPU instance.
    """
    on = _parents(card, functions)
    found: dict[str, Layout] = {}
    for kind in facts.mdev_types(on[0], functions) if on else ():
        # What can be made now is less than that where devices of another type are on the card.
        most = vgpu.most_instances(kind.description)
        name = next((each for each in names if nvidia_layouts.is_meant(each, kind.name)), None)
        if name is not None and most and not is_slice(kind.name):
            count = most if on[0] is card else min(most, len(on))
            layout = Layout(
                name=name, number=kind.id, kind=kind.name, count=count, mediated=True
            )
            found.setdefault(name, layout)
    return tuple(found.values())


def handles(
    card: pci.Function, functions: pci.Snapshot, layout: Layout
) -> tuple[base.AttachHandle, ...]:
    """The handles of a card with a layout. A virtual function has one mediated device."""
    on = _parents(card, functions)
    if on[:1] == (card,):
        return mdev_handles.handles(layout.number, layout.count, pci.split(card.address))
    each = (mdev_handles.handles(layout.number, 1, pci.split(vf.address)) for vf in on)
    return tuple(handle for (handle,) in each)[: layout.count]


def created(card: pci.Function, functions: pci.Snapshot) -> tuple[str, ...]:
    """The uuids of the mediated devices of a card."""
    return tuple(sorted(uuid for kind in _made(card, functions) for uuid in kind.created))


def shown(
    card: pci.Function, functions: pci.Snapshot, layouts: Sequence[Layout], kept: str
) -> str:
    """The layout that a card has: names of types if it is none of these, empty if it has none."""
    present = {kind.id for kind in _made(card, functions)}
    if not present:
        last = nvidia_layouts.named(kept, layouts) if kept else None
        return last.name if last is not None else ""
    for layout in layouts:
        if present == {layout.number}:
            return layout.name
    return "-".join(sorted(present))


def give(
    card: pci.Function, functions: pci.Snapshot, layout: Layout, target: base.ProgramTarget
) -> None:
    """Return if a card can have that layout. What guests of this layout have is not touched.

    :raises NothingWritten: somebody has a mediated device of another type
    :raises NotPermitted: it takes too long
    """
    others = sorted({kind.name for kind in _made(card, functions) if kind.id != layout.number})
    if others:
        raise base.NothingWritten(
            f"GPU {card.address} has mediated devices of type {', '.join(others)}"
        )
    target.check_permit()


def _parents(card: pci.Function, functions: pci.Snapshot) -> tuple[pci.Function, ...]:
    """The functions that offer a card's mediated devices: itself, or its virtual functions."""
    both = (card, *(functions[vf] for vf in card.vfs))
    return tuple(
        each for each in both if functions.names(each.address, "mdev_supported_types")
    )


def _made(card: pci.Function, functions: pci.Snapshot) -> Iterator[facts.MdevType]:
    """The types of which there are mediated devices, once for each function that has some."""
    for function in _parents(card, functions):
        yield from (kind for kind in facts.mdev_types(function, functions) if kind.created)
