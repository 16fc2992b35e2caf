# SPDX-License-Identifier: Apache-2.0
"""An operation that has not ended, and its deployable, which a transaction has locked.

Here is all that such a transaction changes of the two, and what work it leaves for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.programming import operations, program, states, using_arqs
from cyborg.programming.states import ProgramEvent
from cyborg.states import handle_states

#: Why an operation fails whose deployable is not there any more.
GONE = "The deployable is gone from its host."


class CannotProgram(errors.CyborgError):
    """The operation cannot be carried out, and nothing has been written."""

    def __init__(self, fault: str, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class LockedOperation:
    """An operation that has not ended, and its deployable, which a transaction has locked."""

    session: orm.Session
    deployable: models.Deployable | None
    operation: models.Operation

    @property
    def restores(self) -> bool:
        """The operation is to write again what the hardware has lost."""
        return self.operation.asked_by == operations.RECOVERY

    @property
    def overwrites(self) -> bool:
        """The operation is to overwrite what guests have left, whatever runs now."""
        return self.operation.asked_by == operations.CLEANING

    def why_used(self, written: program.Program) -> str | None:
        """The reason why the program must not be written: who has the deployable, or None."""
        if self.deployable is None:
            return None
        # The handles that guests have left wait for the operation that overwrites.
        check = using_arqs.why_not_now if self.overwrites else using_arqs.why_not
        return check(self.session, self.deployable, written)

    def is_used(self) -> bool:
        """A guest has any of the deployable, or is being given it."""
        return self.deployable is not None and using_arqs.is_used(self.session, self.deployable)

    def move(self, state: str, text: str, event: ProgramEvent | None = None, **values: Any) -> None:
        """Bring the operation to its next state, and the program of a deployable that is there."""
        # What is only queued has changed nothing.
        is_same = event is ProgramEvent.UNWRITTEN and self.operation.state == operations.QUEUED
        row = self.deployable
        change = None if row is None or event is None or is_same else (row, event)
        operations.move(self.session, self.operation, state, text, change=change, **values)

    def fail(self, reason: str, fault: str, *, written: bool = False) -> work.TryLater | None:
        """End the operation, or return what to raise if a guest has what it restores."""
        event = ProgramEvent.WRITE_FAILED if written else ProgramEvent.UNWRITTEN
        row, began = self.deployable, self.operation.state == operations.WRITING
        if row is not None and began and not written and row.program_state != models.DAMAGED:
            # Nor has an earlier try written anything. What restores or overwrites finds handles
            # that others have left of an earlier write.
            finds_others = self.restores or self.overwrites
            using_arqs.note_needs(self.session, row, needs_write=False, left_too=not finds_others)
        if self.restores and self.is_used():
            if self.operation.state == operations.WRITING:
                text = f"{reason} It is tried again."
                self.move(operations.RESERVING, text, event, error=reason)
            else:
                operations.note(self.session, self.operation, reason)
            return work.TryLater(f"The program of a guest cannot be put back now: {reason}")
        if self.restores:
            event = ProgramEvent.NOT_NEEDED
        self.move(operations.FAILED, reason, event, error=reason, fault=fault)
        self.notify()
        return None

    def note_written(self) -> None:
        """Note that who waits has what it needs, and what guests had left in it is gone.

        The latter is so after each write, also one that restores what others need: the handles that
        were left can be cleaned.
        """
        row = self.deployable
        if row is None:
            return
        using_arqs.note_needs(self.session, row, needs_write=False)
        left = handle_states.note_overwritten(self.session, row.id)
        work.want(self.session, work.HOST_STEP, left)

    def notify(self, *, binds: bool = True) -> None:
        """Want the work that depends on what has become of the deployable's program.

        Placement is updated. Unless ``binds`` is false, the binds that wait for it are looked at
        again, and its host's next report is read even if it is the same as the last one.
        """
        session, row = self.session, self.deployable
        if row is None:
            return
        arq, handle = models.Arq, models.AttachHandle
        name = sa.select(models.Host.name).where(is_host_of(row))
        work.want(session, work.PLACEMENT, session.scalars(name))
        if binds:
            forget_report(session, row)
            waiting = (
                sa.select(handle.uuid)
                .join(arq, arq.attach_handle_id == handle.id)
                .where(handle.deployable_id == row.id, arq.state == models.BIND_STARTED)
            )
            work.want(session, work.HOST_STEP, session.scalars(waiting))


def is_host_of(row: models.Deployable) -> sa.ColumnElement[bool]:
    """Selects the host of a deployable."""
    its = sa.select(models.Device.host_id).where(models.Device.id == row.device_id)
    return models.Host.id == its.scalar_subquery()


def forget_report(session: orm.Session, row: models.Deployable) -> None:
    """Have the next report of the host read even if it is the same as the last one."""
    db.update(session, models.Host, is_host_of(row), report_digest=None)


def end_gone(locked: LockedOperation) -> None:
    """End an operation whose deployable has left its host; what is lost is restored on return."""
    event = ProgramEvent.VANISHED if locked.restores else ProgramEvent.UNWRITTEN
    locked.move(operations.FAILED, GONE, event, error=GONE, fault=operations.BROKEN)
    locked.notify()


def end_needless(locked: LockedOperation) -> bool:
    """End an operation that has nothing to restore; False if it must go on, like any other."""
    row = locked.deployable
    if not locked.restores:
        return False
    if row is not None and row.program_state == models.LOST and states.is_shown(row):
        text = "The hardware shows it again; nothing was written."
        locked.move(operations.SUCCEEDED, text, ProgramEvent.SHOWN_AGAIN, error=None)
    elif not locked.is_used():
        reason = "No guest has it any more."
        values = {"error": reason, "fault": operations.CONFLICT}
        locked.move(operations.FAILED, reason, ProgramEvent.NOT_NEEDED, **values)
    else:
        return False
    locked.notify()
    return True
