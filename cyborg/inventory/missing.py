# SPDX-License-Identifier: Apache-2.0
"""What a host no longer shows but an ARQ still holds, and its end once nobody holds it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, notifications
from cyborg.db import models
from cyborg.notifications import notices


def discard(session: orm.Session, host_id: int) -> frozenset[int]:
    """Delete what is missing from the host and held by no ARQ: handles, deployables, devices.

    Returns the ids of the devices. A constant number of statements. The caller has wanted
    ``placement/<host>`` in this transaction: the lock on that row keeps two from discarding at
    once, of whom neither would see that the last handle of a deployable is gone.
    """
    handle, deployable, device = models.AttachHandle, models.Deployable, models.Device
    of_host = sa.select(deployable.id).join(device).where(device.host_id == host_id)
    held = sa.exists().where(models.Arq.attach_handle_id == handle.id)
    _delete_selected(
        session, handle, handle.missing.is_(True), handle.deployable_id.in_(of_host), ~held
    )
    has_handles = sa.exists().where(handle.deployable_id == deployable.id)
    empty = list(
        session.scalars(
            sa.select(deployable.id)
            .join(device)
            .where(device.host_id == host_id, deployable.missing.is_(True), ~has_handles)
        )
    )
    if empty:
        db.delete(session, models.Attribute, models.Attribute.deployable_id.in_(empty))
        db.delete(session, deployable, deployable.id.in_(empty))
    has_deployables = sa.exists().where(deployable.device_id == device.id)
    gone = session.execute(
        sa.select(device, models.Host.node)
        .join(models.Host, models.Host.id == device.host_id)
        .where(device.host_id == host_id, device.missing.is_(True), ~has_deployables)
    ).all()
    bare = [row.id for row, _ in gone]
    if bare:
        notifications.announce(
            session, (notices.of_device(notices.DEVICE_DELETED, row, node) for row, node in gone)
        )
        db.delete(session, models.ControlPath, models.ControlPath.device_id.in_(bare))
        db.delete(session, device, device.id.in_(bare))
    return frozenset(bare)


def _delete_selected(
    session: orm.Session, model: type[models.AttachHandle], *where: sa.ColumnElement[bool]
) -> None:
    # By id: MySQL deletes from no table that the condition reads.
    ids = list(session.scalars(sa.select(model.id).where(*where)))
    if ids:
        db.delete(session, model, model.id.in_(ids))
