# SPDX-License-Identifier: Apache-2.0
"""Which attach handles of a deployable are those that its host reports now."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from cyborg.db import models
from cyborg.drivers import base

_PLACE = ("domain", "bus", "device", "function")
_Place = tuple[str | None, ...]


def made(handle: base.AttachHandle) -> models.AttachHandle:
    """A row for a handle that is new."""
    return models.AttachHandle(
        attach_type=handle.attach_type,
        attach_info=_info(handle),
        arq=None,  # told, so that nobody need look for whoever has it
    )


def update(row: models.Deployable, deployable: base.Deployable) -> list[models.AttachHandle]:
    """Make the rows of a deployable's handles those that are reported; the rest is returned.

    A PCI function stays the same handle whatever else is told of it now, such as its physical
    network: another handle would be the same function for another guest. What a guest has stays
    as the guest was told.
    """
    rest = {handle.attach_info: handle for handle in row.attach_handles}
    new: list[base.AttachHandle] = []
    for handle in deployable.attach_handles:
        found = rest.pop(_info(handle), None)
        if found is None:
            new.append(handle)
        else:
            found.attach_type = handle.attach_type
            found.missing = False
    by_place = _by_place(list(rest.values())) if new else {}
    for handle in new:
        found = by_place.pop(_place(handle.attach_type, handle.attach_info), None)
        if found is None:
            row.attach_handles.append(made(handle))
            continue
        del rest[found.attach_info]
        found.missing = False
        if found.arq is None:
            found.attach_info = _info(handle)
    return list(rest.values())


def waits(row: models.Deployable, deployable: base.Deployable) -> bool:
    """Whether a guest has a handle of which something else is told now."""
    told = {_info(handle) for handle in deployable.attach_handles}
    return any(
        not handle.missing and handle.attach_info not in told for handle in row.attach_handles
    )


def _info(handle: base.AttachHandle) -> str:
    return base.canonical_json(dict(handle.attach_info))


def _by_place(rows: Sequence[models.AttachHandle]) -> dict[_Place | None, models.AttachHandle]:
    """PCI functions; of two that are the same the one that a guest has."""
    free_first = sorted(rows, key=lambda row: row.arq is not None)
    places = {_place(row.attach_type, json.loads(row.attach_info)): row for row in free_first}
    return {place: row for place, row in places.items() if place is not None}


def _place(attach_type: str, info: Mapping[str, str]) -> _Place | None:
    return tuple(info.get(part) for part in _PLACE) if attach_type == "PCI" else None
