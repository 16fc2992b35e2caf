# SPDX-License-Identifier: Apache-2.0
"""The state of a deployable's program: the one table of what may follow what.

Everything that happens to a program is an :class:`ProgramEvent`. :func:`next_state` says what
becomes of it, and :func:`change` stores that for a locked deployable. Only this module sets the
state.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.common import program_modes
from cyborg.db import models
from cyborg.db.models import (
    BLANK,
    DAMAGED,
    LEFT_OVER,
    LOADED,
    LOST,
    RESTORING,
    SETTLED,
    UNMANAGED,
    WITHDRAWN,
    WRITING,
)
from cyborg.programming import program
from cyborg.states import availability

#: What each state means.
STATES: Mapping[str, str] = {
    UNMANAGED: "Its driver does not program it. The programs of guests may stay recorded.",
    BLANK: "It can be programmed, and nothing is known to run on it.",
    LOADED: "It runs what is recorded, for sure.",
    WITHDRAWN: "Something else is about to be written; its inventory is being withdrawn.",
    WRITING: "Something else may have been written.",
    LOST: "Guests have what is recorded, but a report showed that the hardware does not run it.",
    RESTORING: "The first write that restores the lost program may have begun.",
    DAMAGED: "It was written again, and that failed. Reports are not believed any more.",
}

#: States in which guests have what is recorded, which the hardware does not run.
TO_RESTORE = frozenset({LOST, RESTORING, DAMAGED})

#: The columns that are recorded anew with each program, besides those of its function.
_RECORD = (
    "bitstream_id",
    "bitstream",
    "function_name",
    "function_shown",
    "programmed_ms",
    "programmed_by",
    "verified_by",
)


class ProgramEvent(enum.Enum):
    """What happens to the program of a deployable."""

    NOT_PROGRAMMABLE = "A report: its driver does not program it."
    FOUND_BLANK = "A report: it runs nothing, and no guest needs what was recorded."
    FOUND_LOADED = "A report: it runs what is recorded, or what is recorded from now on."
    FOUND_LOST = "A report: it does not run what guests have of it."
    WITHDRAWN = "An operation that is to write something else begins to reserve it."
    WRITE_BEGAN = "An operation begins to write."
    VERIFIED = "The host has written it and said what it runs."
    BLANKED = "The host has written the blank image over it, which shows no function."
    WRITE_FAILED = "The host has begun to write it and failed."
    UNWRITTEN = "The operation was refused or failed, and nothing was written."
    UNWRITTEN_BLANK = "The same, but nothing is recorded, or a report has shown something else."
    SHOWN_AGAIN = "A report has shown again what was lost, and nothing was written."
    VANISHED = "It left its host before it was written again."
    NOT_NEEDED = "No guest has any more what was to be written again."


_E = ProgramEvent

#: What follows a state after an event. What is not here cannot happen.
TABLE: Mapping[tuple[str, ProgramEvent], str] = {
    (UNMANAGED, _E.NOT_PROGRAMMABLE): UNMANAGED,
    (UNMANAGED, _E.FOUND_BLANK): BLANK,
    (UNMANAGED, _E.FOUND_LOADED): LOADED,
    (UNMANAGED, _E.FOUND_LOST): LOST,
    (BLANK, _E.NOT_PROGRAMMABLE): UNMANAGED,
    (BLANK, _E.FOUND_BLANK): BLANK,
    (BLANK, _E.FOUND_LOADED): LOADED,
    (BLANK, _E.WITHDRAWN): WITHDRAWN,
    (LOADED, _E.NOT_PROGRAMMABLE): UNMANAGED,
    (LOADED, _E.FOUND_BLANK): BLANK,
    (LOADED, _E.FOUND_LOADED): LOADED,
    (LOADED, _E.FOUND_LOST): LOST,
    (LOADED, _E.WITHDRAWN): WITHDRAWN,
    (WITHDRAWN, _E.WRITE_BEGAN): WRITING,
    (WITHDRAWN, _E.UNWRITTEN): LOADED,
    (WITHDRAWN, _E.UNWRITTEN_BLANK): BLANK,
    (WRITING, _E.VERIFIED): LOADED,
    (WRITING, _E.BLANKED): BLANK,
    (WRITING, _E.WRITE_FAILED): BLANK,
    (WRITING, _E.UNWRITTEN): LOADED,
    (WRITING, _E.UNWRITTEN_BLANK): BLANK,
    # Its last guest has left before something else was to be written.
    (LOST, _E.WITHDRAWN): WITHDRAWN,
    (LOST, _E.WRITE_BEGAN): RESTORING,
    (LOST, _E.SHOWN_AGAIN): LOADED,
    (LOST, _E.VANISHED): LOST,
    (LOST, _E.NOT_NEEDED): BLANK,
    (RESTORING, _E.VERIFIED): LOADED,
    (RESTORING, _E.WRITE_FAILED): DAMAGED,
    (RESTORING, _E.UNWRITTEN): LOST,
    (RESTORING, _E.NOT_NEEDED): BLANK,
    (DAMAGED, _E.WRITE_BEGAN): DAMAGED,
    (DAMAGED, _E.VERIFIED): LOADED,
    (DAMAGED, _E.WRITE_FAILED): DAMAGED,
    (DAMAGED, _E.UNWRITTEN): DAMAGED,
    (DAMAGED, _E.VANISHED): LOST,
    (DAMAGED, _E.NOT_NEEDED): BLANK,
}


def next_state(state: str, event: ProgramEvent) -> str:
    """What follows ``state`` after ``event``.

    :raises AssertionError: that cannot happen
    """
    if (state, event) not in TABLE:
        raise AssertionError(f"{event.name} cannot happen to a program that is {state}.")
    return TABLE[state, event]


def change(
    session: orm.Session, row: models.Deployable, event: ProgramEvent, **values: Any
) -> None:
    """Bring the program of a locked deployable to its next state.

    ``values`` are other columns that change with it: those of :func:`record`, or
    ``function_shown``. What becomes blank keeps no record, and is not offered before a report has
    said what it runs.

    :raises RestartTransaction: somebody else has changed it since it was read
    """
    if event is ProgramEvent.UNWRITTEN and row.program_state not in TO_RESTORE:
        shows_it = row.function_shown is None or is_shown(row)
        if not shows_it or availability.is_blank(row.record):
            event = ProgramEvent.UNWRITTEN_BLANK
    state = next_state(row.program_state, event)
    if state == BLANK != row.program_state:
        values = record(function_shown=_left_over(row, event)) | values
    if state == DAMAGED:
        values = {"function_shown": None} | values
    if state in SETTLED and row.program_mode is None:
        state = next_state(state, ProgramEvent.NOT_PROGRAMMABLE)
    store(session, row, state, **values)


def begin(row: models.Deployable, event: ProgramEvent) -> None:
    """Set the state of the program of a deployable that is not in the database yet."""
    state = next_state(UNMANAGED, event)
    row.program_state = state
    set_trait(row)


def _left_over(row: models.Deployable, event: ProgramEvent) -> str | None:
    """What counts as shown of a program that becomes blank: nobody knows what a write has left."""
    given_up = event in {ProgramEvent.WRITE_FAILED, ProgramEvent.NOT_NEEDED}
    unlike = row.function_shown is not None and not is_shown(row)
    return LEFT_OVER if given_up or (event is ProgramEvent.UNWRITTEN_BLANK and unlike) else None


def store(session: orm.Session, row: models.Deployable, state: str, **values: Any) -> None:
    """Store the state of a locked deployable's program, for :func:`change`.

    :raises RestartTransaction: somebody else has changed it since it was read
    """
    values["program_state"] = state
    changed = {name: value for name, value in values.items() if getattr(row, name) != value}
    if not changed:
        return
    seen = (models.Deployable.id == row.id, models.Deployable.program_state == row.program_state)
    if not db.update(session, models.Deployable, *seen, **changed):
        raise db.RestartTransaction
    if "function_id" in changed and "attributes" in sa.inspect(row).unloaded:
        changed["attributes"] = None
    session.refresh(row, list(changed))
    if "function_id" in changed:
        set_trait(row)


def record(*, function_id: str | None = None, **values: Any) -> dict[str, Any]:
    """The columns that record what a deployable runs: null if not given.

    Nothing has been shown since.
    """
    plain = program.plain(function_id) if function_id else None
    return dict.fromkeys(_RECORD) | values | {"function_id": function_id, "function_plain": plain}


def is_shown(row: models.Deployable) -> bool:
    """Whether the hardware has shown what is recorded, when it was last looked at."""
    return row.function_shown == (row.function_plain or "")


def set_trait(row: models.Deployable) -> None:
    """Give a deployable whose attributes are loaded the trait of the function recorded of it.

    One that its driver does not program has none: the function may be outdated. Nor has one with a
    layout, for which its driver reports traits.
    """
    has_trait = row.program_mode not in {None, program_modes.LAYOUT}
    function = row.function_id if has_trait else None
    wanted = program.function_trait(row.function_vendor, function) if function else None
    present = next((each for each in row.attributes if each.key == program.TRAIT_KEY), None)
    if present is not None and wanted is not None:
        # In place: another row of that key would be inserted before this one is deleted.
        present.value = wanted
    elif present is not None:
        row.attributes.remove(present)
    elif wanted is not None:
        key, origin = program.TRAIT_KEY, program.ORIGIN
        row.attributes.append(models.Attribute(key=key, value=wanted, origin=origin))
