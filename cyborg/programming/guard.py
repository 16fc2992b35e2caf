# SPDX-License-Identifier: Apache-2.0
"""What forbids to program a deployable: whoever has a handle of it, or is about to."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import models, program_models
from cyborg.programming import wanted


def holder(
    session: orm.Session,
    deployable: models.Deployable,
    what: wanted.Wanted,
    instance_uuid: str | None,
) -> str | None:
    """A sentence on what holds a locked deployable, or None where it may be programmed.

    The ARQs that wait for this very program, of the instance for which it is to be written, do
    not count. Those of Placement's consumers that have no ARQ yet are for
    :func:`cyborg.programming.steps.run` to find.
    """
    for arq in _users(session, deployable):
        if not _waits_for(arq, what, instance_uuid):
            return _sentence(arq)
    return None


def is_awaited(session: orm.Session, operation: program_models.Operation) -> bool:
    """Whether the instance for whose binding the operation is still waits for it."""
    arq, handle, deployable = models.Arq, models.AttachHandle, models.Deployable
    query = (
        sa.select(arq.id)
        .join(handle, handle.id == arq.attach_handle_id)
        .join(deployable, deployable.id == handle.deployable_id)
        .where(
            deployable.uuid == operation.deployable_uuid,
            arq.instance_uuid == operation.instance_uuid,
            arq.state == models.BIND_STARTED,
        )
        .limit(1)
    )
    return session.scalar(query) is not None


def _users(session: orm.Session, deployable: models.Deployable) -> list[models.Arq]:
    """The ARQs that hold a handle of the deployable, or are to be given one."""
    arq, handle = models.Arq, models.AttachHandle
    handles = sa.select(handle.id).where(handle.deployable_id == deployable.id)
    undecided = sa.and_(
        arq.device_rp_uuid == deployable.rp_uuid, arq.state == models.BIND_STARTED
    )
    query = (
        sa.select(arq)
        .where(sa.or_(arq.attach_handle_id.in_(handles), undecided))
        .order_by(arq.id)
        .execution_options(populate_existing=True)
    )
    return list(session.scalars(query))


def _waits_for(arq: models.Arq, what: wanted.Wanted, instance_uuid: str | None) -> bool:
    return (
        instance_uuid is not None
        and arq.instance_uuid == instance_uuid
        and arq.state == models.BIND_STARTED
        and wanted.of_group(arq.group).agrees(what)
    )


def _sentence(arq: models.Arq) -> str:
    if arq.state in models.SERVING:
        return f"ARQ {arq.uuid} of instance {arq.instance_uuid} has it ({arq.state})."
    return f"An attach handle of it is being cleaned after use by ARQ {arq.uuid}."
