# SPDX-License-Identifier: Apache-2.0
"""What forbids to program a deployable: whoever has a handle of it, or is about to."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import models, program_models
from cyborg.programming import wanted


def holder(
    session: orm.Session, deployable: models.Deployable, what: wanted.Wanted
) -> str | None:
    """A sentence on what holds a locked deployable, or None where it may be programmed.

    The ARQs that wait for this very program do not count, unless what runs now serves them: those
    may be Bound at any moment. Those of Placement's consumers that have no ARQ yet are for
    :func:`cyborg.programming.steps.run` to find.
    """
    for arq in _users(session, deployable.id, deployable.rp_uuid):
        if not _waits_for(arq, what) or wanted.of_group(arq.group).is_run_by(deployable):
            return _sentence(arq)
    return None


def awaiting(session: orm.Session, operation: program_models.Operation) -> set[str]:
    """The instances that wait for the program of an operation."""
    row = models.Deployable
    where = row.uuid == operation.deployable_uuid
    found = session.execute(sa.select(row.id, row.rp_uuid).where(where)).one_or_none()
    what = wanted.of_operation(operation)
    users = _users(session, *found) if found else []
    return {arq.instance_uuid for arq in users if arq.instance_uuid and _waits_for(arq, what)}


def is_used(session: orm.Session, deployable: models.Deployable) -> bool:
    """Whether a guest has any of a locked deployable, or is being given it.

    A handle that is being prepared must not be found under another program.
    """
    users = _users(session, deployable.id, deployable.rp_uuid)
    return any(arq.attach_handle_id and arq.state in models.SERVING for arq in users)


def _users(session: orm.Session, deployable_id: int, rp_uuid: str) -> list[models.Arq]:
    """The ARQs that hold a handle of the deployable, or are to be given one."""
    arq, handle = models.Arq, models.AttachHandle
    handles = sa.select(handle.id).where(handle.deployable_id == deployable_id)
    undecided = sa.and_(arq.device_rp_uuid == rp_uuid, arq.state == models.BIND_STARTED)
    query = (
        sa.select(arq)
        .where(sa.or_(arq.attach_handle_id.in_(handles), undecided))
        .order_by(arq.id)
        .execution_options(populate_existing=True)
    )
    return list(session.scalars(query))


def _waits_for(arq: models.Arq, what: wanted.Wanted) -> bool:
    return arq.state == models.BIND_STARTED and wanted.of_group(arq.group).agrees(what)


def _sentence(arq: models.Arq) -> str:
    if arq.state in models.SERVING:
        return f"ARQ {arq.uuid} of instance {arq.instance_uuid} has it ({arq.state})."
    return f"An attach handle of it is being cleaned after use by ARQ {arq.uuid}."
