# SPDX-License-Identifier: Apache-2.0
"""Takes back a request to program a deployable before anything is changed for it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, errors, work
from cyborg.db import models
from cyborg.programming import operations


def cancel(uuid: str, asked_by: str) -> None:
    """End a queued operation as failed; whoever carries it out stops.

    :raises NotFound: there is none
    :raises Conflict: it is not queued any more, or restores what a guest has lost
    """
    _cancel(uuid, asked_by)


@db.retry
def _cancel(uuid: str, asked_by: str) -> None:
    query = sa.select(models.Operation).where(models.Operation.uuid == uuid)
    with db.writer() as session:
        operation = session.scalar(query)
        if operation is None:
            raise errors.NotFound.of("Operation", uuid=uuid)
        deployable = operations.lock(session, operation.deployable_uuid)
        session.refresh(operation)
        if operation.state != operations.QUEUED:
            raise errors.Conflict(
                f"Operation {uuid} is {operation.state}; only a queued one can be cancelled."
            )
        if operation.asked_by == operations.RECOVERY:
            raise errors.Conflict(
                f"Operation {uuid} restores what a guest has lost; it ends when no guest has it."
            )
        told = {"error": operations.CANCELLED, "fault": operations.CONFLICT}
        operations.move(session, operation, operations.FAILED, f"Cancelled by {asked_by}.", **told)
        # A conductor may still look for the image: it must not go on with a later operation.
        work.want(session, work.PROGRAM, [operation.deployable_uuid])
        work.take_back(session, work.PROGRAM, operation.deployable_uuid)
        if deployable is not None:
            work.want(session, work.HOST_STEP, _awaited_by(session, deployable))


def _awaited_by(session: orm.Session, deployable: models.Deployable) -> list[str]:
    """The handles that may wait for the operation, whose binds fail or ask for another one."""
    handle, arq = models.AttachHandle, models.Arq
    waiting = (
        sa.select(handle.uuid)
        .join(arq, arq.attach_handle_id == handle.id)
        .where(handle.deployable_id == deployable.id, arq.state == models.BIND_STARTED)
    )
    return list(session.scalars(waiting))
