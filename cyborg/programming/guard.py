# SPDX-License-Identifier: Apache-2.0
"""What forbids to program a deployable: whoever has a handle of it, or is about to.

So does whoever has one of a deployable of the same device that is missing: that may be the same
part of the device, which has another name now.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import models
from cyborg.programming import program


def holder(
    session: orm.Session, deployable: models.Deployable, what: program.Program
) -> str | None:
    """A sentence on what holds a locked deployable, or None where it may be programmed.

    The ARQs that wait for this very program do not count, unless what runs now serves them: those
    may be Bound at any moment. Those of Placement's consumers that have no ARQ yet are for
    :func:`cyborg.programming.executor.run` to find.
    """
    for arq in _users(session, deployable.id, deployable.device_id):
        if not _waits_for(arq, what) or program.of_group(arq.group).is_run_by(deployable):
            return _sentence(arq, deployable)
    return None


def awaiting(session: orm.Session, operation: models.Operation) -> set[str]:
    """The instances that wait for the program of an operation."""
    row = models.Deployable
    where = row.uuid == operation.deployable_uuid
    found = session.execute(sa.select(row.id, row.device_id).where(where)).one_or_none()
    what = program.of_operation(operation)
    users = _users(session, *found) if found else []
    return {arq.instance_uuid for arq in users if arq.instance_uuid and _waits_for(arq, what)}


def is_used(session: orm.Session, deployable: models.Deployable) -> bool:
    """Whether a guest has any of a locked deployable, or is being given it.

    A handle that is being prepared must not be found under another program.
    """
    users = _users(session, deployable.id, deployable.device_id)
    return any(arq.attach_handle_id and arq.state in models.SERVING for arq in users)


def _users(session: orm.Session, deployable_id: int, device_id: int) -> list[models.Arq]:
    """The ARQs that hold a handle of the deployable, or are to be given one."""
    arq, handle, row = models.Arq, models.AttachHandle, models.Deployable
    these = sa.and_(
        row.device_id == device_id, sa.or_(row.id == deployable_id, row.missing.is_(True))
    )
    holding = (
        sa.select(arq.id)
        .join(handle, handle.id == arq.attach_handle_id)
        .join(row, row.id == handle.deployable_id)
        .where(these)
    )
    undecided = (
        sa.select(arq.id)
        .join(row, row.rp_uuid == arq.device_rp_uuid)
        .where(these, arq.state == models.BIND_STARTED)
    )
    # An OR instead of the UNION would read all ARQs.
    ids = sa.union(holding, undecided).subquery()
    query = (
        sa.select(arq)
        .join(ids, ids.c.id == arq.id)
        .order_by(arq.id)
        .execution_options(populate_existing=True)
    )
    return list(session.scalars(query))


def _waits_for(arq: models.Arq, what: program.Program) -> bool:
    return arq.state == models.BIND_STARTED and program.of_group(arq.group).agrees(what)


def _sentence(arq: models.Arq, deployable: models.Deployable) -> str:
    is_own = arq.device_rp_uuid == deployable.rp_uuid
    it = "it" if is_own else "a deployable of its device that is missing"
    if arq.state in models.SERVING:
        return f"ARQ {arq.uuid} of instance {arq.instance_uuid} has {it} ({arq.state})."
    return f"An attach handle of {it} is being cleaned after use by ARQ {arq.uuid}."
