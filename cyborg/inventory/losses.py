# SPDX-License-Identifier: Apache-2.0
"""Reports that take away much at once: they are believed when the next one says the same.

What counts is what guests could have: attach handles, with their device or without it. The only
card of a host is no exception: a report lacks it for one moment before it counts as taken out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from cyborg.common import program_modes
from cyborg.db import models
from cyborg.inventory.diff import KeptDevice, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredLosses:
    """Devices that are kept for now: their ids, a hash of what was lacking, and why."""

    devices: frozenset[int]
    mark: str
    sentence: str


def deferred(
    known: Sequence[models.Device],
    plan: Plan,
    reported: Mapping[str, Set[tuple[str, str]]],
    max_share: float,
    mark_before: str | None,
) -> DeferredLosses | None:
    """The devices that the plan may not take away now; None if it may take all that it does.

    ``reported`` are the handles that each deployable is reported with, by its name. ``mark_before``
    is the mark of the report before: what that one did not have either may go.
    """
    gone = [row for row in plan.gone if not row.missing]
    emptied = {kept.row: lost for kept in plan.kept if (lost := _lost(kept, reported))}
    devices = sum(not row.missing for row in known)
    handles, lost = _present(known), _present(gone) + sum(emptied.values())
    if len(gone) > max_share * devices:
        missing = f"{len(gone)} of {devices} devices"
    elif lost > max_share * handles:
        missing = f"{lost} of {handles} attach handles"
    else:
        return None
    marks = [row.uuid for row in gone] + [f"{row.uuid} {n}" for row, n in emptied.items()]
    mark = hashlib.sha256(" ".join(sorted(marks)).encode()).hexdigest()
    if mark == mark_before:
        return None
    sentence = (
        f"{missing} are missing from the report; they are kept until the next one does not have "
        "them either"
    )
    rows = (*plan.gone, *emptied)
    return DeferredLosses(devices=frozenset(row.id for row in rows), mark=mark, sentence=sentence)


def _present(rows: Iterable[models.Device]) -> int:
    deployables = (deployable for row in rows for deployable in row.deployables)
    return sum(not handle.missing for part in deployables for handle in part.attach_handles)


def _lost(kept: KeptDevice, reported: Mapping[str, Set[tuple[str, str]]]) -> int:
    """The number of handles that a device has and is not reported with.

    One that is being programmed has others, or none, until that is done. One that is divided in
    another way may have fewer.
    """
    parts = kept.row.deployables
    if kept.device.being_written or not all(part.is_settled for part in parts):
        return 0
    there = sum(len(reported.get(part.name, ())) for part in kept.device.deployables)
    if there and any(part.program_mode == program_modes.LAYOUT for part in parts):
        return 0
    return max(0, _present([kept.row]) - there)
