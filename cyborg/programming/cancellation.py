# SPDX-License-Identifier: Apache-2.0
"""Takes back a request to program a deployable before anything is written."""

from __future__ import annotations

import sqlalchemy as sa

from cyborg import db, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.programming import operations
from cyborg.programming.locked_operation import LockedOperation
from cyborg.programming.states import ProgramEvent


@db.retry
def cancel(uuid: str, asked_by: str) -> None:
    """End an operation as failed that has not begun to write; whoever carries it out stops.

    :raises NotFound: there is none
    :raises Conflict: it has begun to write, has ended, or restores what a guest has lost
    """
    row = models.Operation
    with db.writer() as session:
        # The operation itself is read when nobody else changes it any more.
        where = session.scalar(sa.select(row.deployable_uuid).where(row.uuid == uuid))
        deployable = operations.lock(session, where) if where is not None else None
        operation = session.scalar(sa.select(row).where(row.uuid == uuid))
        if operation is None:
            raise errors.NotFound.of("Operation", uuid=uuid)
        if operation.state not in {operations.QUEUED, operations.RESERVING}:
            raise errors.Conflict(
                f"Operation {uuid} is {operation.state}; only one that has not begun to write can "
                "be cancelled."
            )
        if operation.asked_by == operations.RECOVERY:
            raise errors.Conflict(
                f"Operation {uuid} restores what a guest has lost; it ends when no guest has it."
            )
        locked = LockedOperation(session, deployable, operation)
        locked.move(
            operations.FAILED,
            f"Cancelled by {asked_by}.",
            ProgramEvent.UNWRITTEN,
            error="An administrator has cancelled it.",
            fault=operations.CANCELLED,
        )
        # The conductor that carries it out must not go on with a later operation.
        work.want(session, work.PROGRAM, [operation.deployable_uuid])
        work.take_back(session, work.PROGRAM, operation.deployable_uuid)
        # It is offered again, and the binds that wait for it fail or ask for another one.
        locked.notify()
