# SPDX-License-Identifier: Apache-2.0
"""Draining hosts: nothing new is given out, and what is in use is followed down to nothing.

A host that is tainted gives out new things only to those who tolerate that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.hosts import flags
from cyborg.programming import operations
from cyborg.states import availability

_HOST, _OPERATION, _DEPLOYABLE = models.Host, models.Operation, models.Deployable
_DEVICE, _ARQ, _HANDLE = models.Device, models.Arq, models.AttachHandle


class DeviceUser(NamedTuple):
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
    users: Sequence[DeviceUser]
    programming: int
    operations: Sequence[models.Operation]


def drain(name: str, reason: str | None, limit: int) -> Drain:
    """Give out nothing new of a host; it may be drained already. Guests keep what they have.

    What is asked for by function pools and is not being written yet, is not written any more.
    ``name`` is the host's name or node, and ``limit`` the most users that are named.

    :raises NotFound: there is no such host
    """
    return _put(flags.DRAINED, name, limit, on=True, reason=reason)


def undrain(name: str, limit: int) -> Drain:
    """Give the devices of a host out again; it may not be drained.

    :raises NotFound: there is no such host
    """
    return _put(flags.DRAINED, name, limit, on=False)


def taint(name: str, reason: str | None, limit: int) -> Drain:
    """Taint a host: only profiles that tolerate it get its devices; it may be so already.

    :raises NotFound: there is no such host
    """
    return _put(flags.HOST_TAINTED, name, limit, on=True, reason=reason)


def untaint(name: str, limit: int) -> Drain:
    """Give the devices of a host to every guest again; it may not be tainted.

    :raises NotFound: there is no such host
    """
    return _put(flags.HOST_TAINTED, name, limit, on=False)


@db.retry
def _put(
    flag: flags.Flag, name: str, limit: int, *, on: bool, reason: str | None = None
) -> Drain:
    with db.writer() as session:
        host = _find(session, name, lock=True)
        if flag is flags.DRAINED and host.drained != on:
            host.drained_ms = session.scalar(sa.select(db.now_ms())) if on else None
        if flag is flags.DRAINED and on:
            of_pools = running(models.Device.host_id == host.id, operations.is_queued_by_pool())
            # Who carries them out sees that the host is drained.
            keys = session.scalars(of_pools.with_only_columns(models.Deployable.uuid))
            work.want(session, work.PROGRAM, keys)
        flags.put(session, flag, host, on=on, reason=reason)
        return _with_users(session, host, limit)


def get_host(name: str, limit: int) -> Drain:
    """A host, and who uses it.

    :raises NotFound: there is no such host
    """
    with db.reader() as session:
        return _with_users(session, _find(session, name), limit)


def _find(session: orm.Session, name: str, *, lock: bool = False) -> models.Host:
    named = sa.or_(_HOST.name == name, _HOST.node == name)
    # Of two the one whose own name it is.
    query = sa.select(_HOST).where(named, _HOST.removed.is_(False)).order_by(_HOST.name != name)
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
    uses = _uses(host.id)
    age, *columns = uses.c
    query = sa.select(*columns).order_by(age, uses.c.arq_uuid).limit(limit)
    under_way = running(models.Device.host_id == host.id).add_columns(sa.func.count().over())
    found = session.execute(under_way.order_by(_OPERATION.id).limit(limit)).all()
    return Drain(
        host=host,
        programming=found[0][1] if found else 0,
        operations=[row[0] for row in found],
        in_use=session.scalar(sa.select(sa.func.count()).select_from(uses)) or 0,
        users=[DeviceUser._make(row) for row in session.execute(query)],
    )


def running(*where: sa.ColumnElement[bool]) -> sa.Select[models.Operation]:
    """The operations that have not ended, on deployables that with their devices meet ``where``."""
    return (
        sa.select(_OPERATION)
        .join(_DEPLOYABLE, _DEPLOYABLE.uuid == _OPERATION.active)
        .join(_DEVICE, _DEVICE.id == _DEPLOYABLE.device_id)
        .where(*where)
    )


def _uses(host_id: int) -> sa.Subquery:
    """The ARQs that use a deployable of the host, or have left a handle which is not clean yet."""
    columns = (
        _ARQ.id.label("age"),
        _ARQ.uuid.label("arq_uuid"),
        _ARQ.state,
        _ARQ.project_id,
        _ARQ.consumer_uuid,
        _DEVICE.uuid.label("device_uuid"),
    )
    was = (
        sa.literal(0),
        _HANDLE.left_arq,
        # One that is bound again is another use.
        sa.case((_ARQ.state.not_in(models.SERVING), _ARQ.state), else_=models.DELETING),
        _HANDLE.left_project,
        sa.null(),
        _DEVICE.uuid,
    )
    holding, binding, left = (
        each.join(_DEVICE, _DEVICE.id == _DEPLOYABLE.device_id).where(_DEVICE.host_id == host_id)
        for each in (
            *availability.uses_of(_DEPLOYABLE, _ARQ),
            availability.left_in(_DEPLOYABLE, _HANDLE),
        )
    )
    # An OR in place of the UNION would read all ARQs.
    return sa.union(
        holding.with_only_columns(*columns),
        binding.with_only_columns(*columns),
        left.outerjoin(_ARQ, _ARQ.uuid == _HANDLE.left_arq).with_only_columns(*was),
    ).subquery()
