# SPDX-License-Identifier: Apache-2.0
"""Reports of hosts, as far as they are about the program of a deployable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import orm

from cyborg.common.request_groups import RequestGroup
from cyborg.db import models
from cyborg.drivers import base
from cyborg.programming import layouts, program, states, using_arqs
from cyborg.programming.states import ProgramEvent
from cyborg.states import availability

#: What another deployable takes over that is the same part of its device.
_RECORD = states.record().keys() - {"function_shown"}


def add(
    row: models.Deployable,
    deployable: base.Deployable,
    former: models.Deployable | None = None,
) -> None:
    """Set what is known of the program of a deployable that is not in the database yet.

    ``former`` is what the same part of the device was before, of which guests have some.
    """
    row.program_mode, row.function_vendor = deployable.program_mode, deployable.function_vendor
    if deployable.program_mode is None:
        return
    row.function_id = deployable.function or None
    row.function_plain = program.plain(deployable.function or "") or None
    event = _found(row)
    if former is not None:
        event = _take_over(row, former, deployable.function)
    states.begin(row, event)


def find_former(parts: Iterable[models.Deployable]) -> models.Deployable | None:
    """The one deployable of a device that is missing and has guests, who need its program."""
    found = [part for part in parts if part.missing and _is_used(part)]
    return found[0] if len(found) == 1 else None


def _take_over(
    row: models.Deployable, former: models.Deployable, shown: str | None
) -> ProgramEvent:
    """Record what guests have of the deployable under its former name."""
    for name in _RECORD:
        setattr(row, name, getattr(former, name))
    if shown is None:
        return _found(row)
    row.function_shown = program.plain(shown)
    return _found(row) if states.is_shown(row) else ProgramEvent.FOUND_LOST


def update(
    session: orm.Session,
    row: models.Deployable,
    deployable: base.Deployable,
    *,
    being_written: bool = False,
) -> None:
    """Take over how a locked deployable is programmed, and what its hardware shows.

    While its program is not settled, only the host's answer to an operation counts. What is shown
    is kept: it decides if nothing was written after all. It also tells that the handles of a
    layout are reported, so it is not kept if it may be from before the layout was written.
    """
    returns = row.program_mode is None
    row.program_mode = deployable.program_mode
    if deployable.program_mode is not None:
        row.function_vendor = deployable.function_vendor
    seen: dict[str, Any] = {}
    if deployable.function is not None:
        seen["function_shown"] = program.plain(deployable.function)
    if row.is_settled:
        _update_settled(session, row, deployable, seen, returns=returns)
    else:
        if being_written and layouts.is_layout(row.record):
            seen = {}
        states.store(session, row, row.program_state, **seen)
    states.set_trait(row)


def _update_settled(
    session: orm.Session,
    row: models.Deployable,
    deployable: base.Deployable,
    seen: dict[str, Any],
    *,
    returns: bool,
) -> None:
    shown = deployable.function
    if row.function_shown == models.LEFT_OVER:
        # The hardware may be unable to show anything.
        seen = {"function_shown": None} | seen
    if deployable.program_mode is None:
        # What its guests were given stays recorded for the day when it can be programmed again.
        is_left = any(handle.is_left for handle in row.attach_handles)
        forgotten = {} if is_left or _is_used(row) else states.record()
        states.change(session, row, ProgramEvent.NOT_PROGRAMMABLE, **forgotten)
    elif shown is None or program.plain(shown) == (row.function_plain or ""):
        states.change(session, row, _found(row), **seen)
    elif _is_needed(session, row) and not (returns and _is_required(row, shown)):
        states.change(session, row, ProgramEvent.FOUND_LOST, **seen)
    else:
        event = ProgramEvent.FOUND_LOADED if shown else ProgramEvent.FOUND_BLANK
        states.change(session, row, event, **states.record(function_id=shown or None) | seen)


def _found(row: models.Deployable) -> ProgramEvent:
    is_blank = availability.is_blank(row.record)
    return ProgramEvent.FOUND_BLANK if is_blank else ProgramEvent.FOUND_LOADED


def is_kept_for_guests(row: models.Deployable) -> bool:
    """The record of a deployable that is not programmed any more is kept for a guest."""
    return row.program_mode is None and not availability.is_blank(row.record)


def _is_used(row: models.Deployable) -> bool:
    """Somebody has what was programmed here, or asked for the function that is recorded."""
    arqs = [handle.arq for handle in row.attach_handles if handle.arq]
    return _need(row, arqs)


def _need(row: models.Deployable, arqs: Sequence[models.Arq]) -> bool:
    has_layout = layouts.is_layout(row.record) and row.function_id is not None
    if row.bitstream_id is not None or has_layout:
        # A handle is part of its layout, whatever its guest asked for.
        return bool(arqs)
    return row.function_id is not None and any(_asks_for(arq.request, row) for arq in arqs)


def _is_needed(session: orm.Session, row: models.Deployable) -> bool:
    """The same, also under a former name of the deployable."""
    return _is_used(row) or _need(row, using_arqs.former_guests(session, row))


def _is_required(row: models.Deployable, shown: str) -> bool:
    """A guest requires what is shown, which it found while the driver alone knew it."""
    arqs = (handle.arq for handle in row.attach_handles if handle.arq)
    trait = program.function_trait(row.function_vendor, shown)
    return any(arq.state in models.SERVING and trait in arq.request.required for arq in arqs)


def _asks_for(group: RequestGroup, row: models.Deployable) -> bool:
    """A group asks for a program, or for the trait of the function recorded of the row."""
    if program.of_group(group):
        return True
    if row.function_id is None:
        return False
    return program.function_trait(row.function_vendor, row.function_id) in group.required
