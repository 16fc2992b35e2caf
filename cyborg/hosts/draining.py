# SPDX-License-Identifier: Apache-2.0
"""Draining hosts: nothing new is given out, and what is in use is followed down to nothing.

A host that is tainted gives out new things only to those who tolerate that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, history, notifications, work
from cyborg.common import errors
from cyborg.common.reasons import is_news
from cyborg.db import models
from cyborg.notifications import notices
from cyborg.programming import operations

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An ARQ that uses a device of a host, or is about to."""

    arq_uuid: str
    state: str
    project_id: str | None
    instance_uuid: str | None
    device_uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A host, and who uses its devices: ``in_use`` ARQs, of which ``users`` are the oldest.

    ``programming`` is the number of operations on them that have not ended; ``operations`` are the
    oldest.
    """

    host: models.Host
    in_use: int
    users: Sequence[User]
    programming: int
    operations: Sequence[models.Operation]


def drain(name: str, reason: str | None, limit: int) -> Drain:
    """Give out nothing new of a host; it may be drained already. Guests keep what they have.

    What is asked for by function pools and is not being written yet, is not written any more.
    ``name`` is the host's name or node, and ``limit`` the most users that are named.

    :raises NotFound: there is no such host
    """
    changed = _drain(name, reason, limit)
    LOG.info("Host %s is drained: %s; %d ARQs use it", name, history.in_log(reason), changed.in_use)
    return changed


@db.retry
def _drain(name: str, reason: str | None, limit: int) -> Drain:
    with db.writer() as session:
        host = _find(session, name, lock=True)
        if not host.drained or (reason and is_news(host.drain_reason, reason)):
            now = session.scalar(sa.select(db.now_ms()))
            since = host.drained_ms if host.drained else now
            host.drained, host.drain_reason, host.drained_ms = True, reason, since
            entry = {
                "kind": history.DRAINED,
                "hostname": host.node,
                "private_reason": reason,
                "actor": history.user(),
            }
            history.end_of_host(session, host.node, history.DRAINED)
            history.write(session, [entry])
            notifications.announce(session, [notices.of_host(notices.HOST_DRAINED, host)])
        of_pools = _operations(host.id).where(operations.is_queued_by_pool())
        # Who carries them out sees that the host is drained.
        keys = session.scalars(of_pools.with_only_columns(models.Deployable.uuid))
        work.want(session, work.PROGRAM, keys)
        work.want(session, work.PLACEMENT, [host.name])
        return _with_users(session, host, limit)


def undrain(name: str, limit: int) -> Drain:
    """Give the devices of a host out again; it may not be drained.

    :raises NotFound: there is no such host
    """
    changed = _undrain(name, limit)
    LOG.info("Host %s is not drained any more", name)
    return changed


@db.retry
def _undrain(name: str, limit: int) -> Drain:
    with db.writer() as session:
        host = _find(session, name, lock=True)
        was_drained = host.drained
        host.drained, host.drain_reason, host.drained_ms = False, None, None
        if was_drained:
            notifications.announce(session, [notices.of_host(notices.HOST_UNDRAINED, host)])
        history.end_of_host(session, host.node, history.DRAINED)
        work.want(session, work.PLACEMENT, [host.name])
        return _with_users(session, host, limit)


def taint(name: str, reason: str | None, limit: int) -> Drain:
    """Keep a host from new guests whose profile does not tolerate that; it may be so already.

    :raises NotFound: there is no such host
    """
    changed = _set_taint(name, limit, tainted=True, reason=reason)
    LOG.info("Host %s is tainted: %s", name, history.in_log(reason))
    return changed


def untaint(name: str, limit: int) -> Drain:
    """Give the devices of a host to every guest again; it may not be tainted.

    :raises NotFound: there is no such host
    """
    changed = _set_taint(name, limit, tainted=False, reason=None)
    LOG.info("Host %s is not tainted any more", name)
    return changed


@db.retry
def _set_taint(name: str, limit: int, *, tainted: bool, reason: str | None) -> Drain:
    with db.writer() as session:
        host = _find(session, name, lock=True)
        if host.tainted != tainted or (reason and is_news(host.taint_reason, reason)):
            host.tainted, host.taint_reason = tainted, reason
            history.end_of_host(session, host.node, history.TAINTED)
            if tainted:
                history.note_taint(session, reason, hostname=host.node)
            event = notices.HOST_TAINTED if tainted else notices.HOST_UNTAINTED
            notifications.announce(session, [notices.of_host(event, host)])
        work.want(session, work.PLACEMENT, [host.name])
        return _with_users(session, host, limit)


def get_host(name: str, limit: int) -> Drain:
    """A host, and who uses it.

    :raises NotFound: there is no such host
    """
    with db.reader() as session:
        return _with_users(session, _find(session, name), limit)


def _find(session: orm.Session, name: str, *, lock: bool = False) -> models.Host:
    host = models.Host
    named = sa.or_(host.name == name, host.node == name)
    # Of two the one whose own name it is.
    query = sa.select(host).where(named, host.removed.is_(False)).order_by(host.name != name)
    found = session.scalars(query.with_for_update() if lock else query).first()
    if found is None:
        raise errors.NotFound.of("Host", name=name)
    if found.managed_by == models.IRONIC:
        raise errors.NotFound(
            f"Host {name} has no agent: only Ironic knows it, and nothing of it is given out."
        )
    return found


def _with_users(session: orm.Session, host: models.Host, limit: int) -> Drain:
    """Three SELECTs."""
    operation, uses = models.Operation, _uses(host.id)
    age, *columns = uses.c
    query = sa.select(*columns).order_by(age, uses.c.arq_uuid).limit(limit)
    running = _operations(host.id).add_columns(sa.func.count().over())
    found = session.execute(running.order_by(operation.id).limit(limit)).all()
    return Drain(
        host=host,
        programming=found[0][1] if found else 0,
        operations=[row[0] for row in found],
        in_use=session.scalar(sa.select(sa.func.count()).select_from(uses)) or 0,
        users=[
            User(
                arq_uuid=uuid,
                state=state,
                project_id=project,
                instance_uuid=instance,
                device_uuid=device,
            )
            for uuid, state, project, instance, device in session.execute(query)
        ],
    )


def _operations(host_id: int) -> sa.Select[models.Operation]:
    """The operations on deployables of the host that have not ended."""
    operation, deployable, device = models.Operation, models.Deployable, models.Device
    return (
        sa.select(operation)
        .join(deployable, deployable.uuid == operation.active)
        .join(device, device.id == deployable.device_id)
        .where(device.host_id == host_id)
    )


def _uses(host_id: int) -> sa.Subquery:
    """The ARQs that hold a handle of the host, or are being bound to a provider of it.

    And those that have left a handle which is not clean yet.
    """
    arq, handle = models.Arq, models.AttachHandle
    device, deployable = models.Device, models.Deployable
    columns = (
        arq.id.label("age"),
        arq.uuid.label("arq_uuid"),
        arq.state,
        arq.project_id,
        arq.instance_uuid,
        device.uuid.label("device_uuid"),
    )
    of_host = (
        sa.select(*columns)
        .join_from(device, deployable, deployable.device_id == device.id)
        .where(device.host_id == host_id)
    )
    holding = of_host.join(deployable.attach_handles).join(handle.arq)
    binding = of_host.join(arq, arq.device_rp_uuid == deployable.rp_uuid).where(
        arq.state == models.BIND_STARTED
    )
    left = of_host.with_only_columns(
        sa.literal(0),
        handle.left_arq,
        # One that is bound again is another use.
        sa.case((arq.state.not_in(models.SERVING), arq.state), else_=models.DELETING),
        handle.left_project,
        sa.null(),
        device.uuid,
    )
    left = left.join(deployable.attach_handles).outerjoin(arq, arq.uuid == handle.left_arq)
    # An OR in place of the UNION would read all ARQs.
    return sa.union(holding, binding, left.where(handle.is_left)).subquery()
