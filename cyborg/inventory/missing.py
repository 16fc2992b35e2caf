# SPDX-License-Identifier: Apache-2.0
"""Rows that are missing from their host: kept while an ARQ holds them or they are not clean."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, notifications, work
from cyborg.db import models
from cyborg.notifications import notices

#: How many devices are forgotten at once.
_AT_ONCE = 100


def discard(session: orm.Session, host_id: int) -> frozenset[int]:
    """Delete handles, deployables and devices that are missing from the host, free and clean.

    Returns the ids of the devices, after a constant number of statements. What is being programmed
    stays, because some cards leave the bus while they are written.

    The caller has wanted ``placement/<host>`` in this transaction, which locks that row of work.
    Without the lock two transactions could delete one handle each of the same deployable, and
    neither would see that it has no handles left.
    """
    handle, deployable, device = models.AttachHandle, models.Deployable, models.Device
    programmed = sa.exists().where(models.Operation.active == deployable.uuid)
    may_go = sa.or_(device.kept_until_ms.is_(None), device.kept_until_ms <= db.now_ms())
    may_go &= device.host_id == host_id
    of_host = (
        sa.select(deployable.id)
        .join(device)
        .where(may_go, ~sa.and_(deployable.missing.is_(True), programmed))
    )
    free = sa.select(handle.id).where(
        handle.missing.is_(True), handle.deployable_id.in_(of_host), ~handle.is_kept
    )
    # Selected first, because MySQL cannot delete from a table that the condition reads.
    if ids := list(session.scalars(free)):
        db.delete(session, handle, handle.id.in_(ids))
    has_handles = sa.exists().where(handle.deployable_id == deployable.id)
    is_empty = sa.and_(deployable.missing.is_(True), ~has_handles, ~programmed, may_go)
    if empty := _empty_trees(session, host_id, is_empty):
        delete_deployables(session, empty)
    has_deployables = sa.exists().where(deployable.device_id == device.id)
    gone = session.execute(
        sa.select(device, models.Host.node)
        .join(models.Host, models.Host.id == device.host_id)
        .where(device.host_id == host_id, device.missing.is_(True), ~has_deployables)
    ).all()
    devices = frozenset(row.id for row, _ in gone)
    if devices:
        notifications.announce(
            session, (notices.of_device(notices.DEVICE_DELETED, row, node) for row, node in gone)
        )
        db.delete(session, models.ControlPath, models.ControlPath.device_id.in_(devices))
        db.delete(session, device, device.id.in_(devices))
    return devices


def forget(_conf: cfg.ConfigOpts) -> None:
    """Delete some of what vanished so long ago that its record need not be kept any more."""
    is_due = models.Device.kept_until_ms <= db.now_ms()
    db.change_due(models.Device, is_due, limit=_AT_ONCE, change=_forget)


def _forget(session: orm.Session, devices: list[models.Device]) -> None:
    for device in devices:
        device.kept_until_ms = None
    session.flush()
    ids = {device.host_id for device in devices}
    query = sa.select(models.Host.id, models.Host.name).where(models.Host.id.in_(ids))
    hosts = dict(list(session.execute(query)))
    work.want(session, work.PLACEMENT, hosts.values())
    for host_id in sorted(hosts):
        discard(session, host_id)


def _empty_trees(
    session: orm.Session, host_id: int, empty: sa.ColumnElement[bool]
) -> frozenset[int]:
    """The host's deployables that are ``empty``, and so is everything below them."""
    deployable, device = models.Deployable, models.Device
    query = sa.select(deployable.id, deployable.parent_id, empty).join(device)
    where = (device.host_id == host_id, sa.or_(empty, deployable.parent_id.is_not(None)))
    rows = session.execute(query.where(*where)).all()
    parents = {row_id: parent for row_id, parent, _ in rows}
    kept: set[int | None] = set()
    for row_id, _, is_empty in rows:
        above = None if is_empty else row_id
        while above is not None and above not in kept:
            kept.add(above)
            above = parents.get(above)
    return frozenset(row_id for row_id, _, is_empty in rows if is_empty) - kept


def delete_deployables(session: orm.Session, ids: Collection[int]) -> None:
    """Delete deployables without attach handles; ``ids`` include everything below them."""
    deployable, attribute = models.Deployable, models.Attribute
    db.delete(session, attribute, attribute.deployable_id.in_(ids))
    # Cut the links first: MySQL checks them row by row, and would not delete a parent first.
    db.update(session, deployable, deployable.id.in_(ids), parent_id=None, root_id=None)
    db.delete(session, deployable, deployable.id.in_(ids))
