# SPDX-License-Identifier: Apache-2.0
"""Slots: what can be given of deployables that run a function, as function pools count it.

A slot is a free attach handle, as long as its deployable has accelerators left: a card whose two
handles are one accelerator has one slot. Whatever is asked of all pools is computed by the
database, in a constant number of statements.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, work
from cyborg.db import models
from cyborg.programming import operations

_POOL = models.FunctionPool
_DEPLOYABLE, _DEVICE, _HOST = models.Deployable, models.Device, models.Host
_HANDLE, _ARQ, _OPERATION = models.AttachHandle, models.Arq, models.Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What there is of a pool."""

    #: How many slots shall be free: those of the pool, and those that were missed lately.
    wanted: int
    misses: int = 0
    #: Free slots, slots that ARQs hold, and slots of deployables that are being programmed.
    ready: int = 0
    used: int = 0
    pending: int = 0
    #: Those of the latter that may take any time.
    stalled: int = 0
    #: Deployables that run the function or are being given it, and those of the latter that are
    #: not stalled.
    devices: int = 0
    coming: int = 0

    @property
    def surplus(self) -> int:
        """Free slots that are not wanted: other pools may have them."""
        return max(0, self.ready - self.wanted)

    @property
    def lack(self) -> int:
        """Slots that are neither free nor soon will be."""
        return max(0, self.wanted - self.ready - self.pending + self.stalled)


def matches(pool: Any) -> sa.ColumnElement[bool]:
    """Whether a deployable may be of the pool, by its host and its traits."""
    names = [sa.func.lower(name).like(pool.hosts_like, escape="!") for name in _names()]
    trait, attribute = models.FunctionPoolTrait, models.Attribute
    has = sa.exists().where(
        attribute.deployable_id == _DEPLOYABLE.id,
        attribute.key.startswith("trait"),
        db.exactly(attribute.value) == trait.trait,
    )
    # By itself a subquery is correlated with the next query around it only.
    has = has.correlate_except(attribute)
    lacks = sa.exists().where(trait.pool_id == pool.id, ~has).correlate_except(trait)
    return sa.and_(sa.or_(pool.hosts_like.is_(None), *names), ~lacks)


def _names() -> tuple[Any, Any]:
    return _HOST.name, _HOST.node


def runs(pool: Any) -> sa.ColumnElement[bool]:
    """Whether a deployable runs the pool's function, by the pool's image where it has one."""
    image = sa.or_(pool.image_uuid.is_(None), pool.image_uuid == _DEPLOYABLE.bitstream_id)
    return sa.and_(pool.function_plain == _DEPLOYABLE.function_plain, image)


def usable() -> sa.ColumnElement[bool]:
    """Whether anything of a deployable can be given to anybody."""
    return sa.and_(
        _DEVICE.status == "enabled",
        _DEVICE.unhealthy.is_(None),
        _DEVICE.missing.is_(False),
        _DEPLOYABLE.missing.is_(False),
        _HOST.down.is_(False),
        _HOST.removed.is_(False),
    )


def is_programmed_now() -> sa.ColumnElement[bool]:
    """Whether there is an operation on a deployable that has not ended."""
    on_it = sa.exists().where(_OPERATION.active == _DEPLOYABLE.uuid)
    return on_it.correlate_except(_OPERATION)


def is_stalled(patience_ms: int | None) -> sa.ColumnElement[bool]:
    """Whether an operation that has not ended is old, and could not go on when it was last tried.

    It is not while a conductor is at it. None: nothing is said to be.
    """
    if patience_ms is None:
        return sa.false()
    row = models.Work
    tried = sa.exists().where(
        row.kind == work.PROGRAM,
        row.key == _OPERATION.active,
        row.last_error.is_not(None),
        row.owner.is_(None),
    )
    return sa.and_(
        _OPERATION.asked_ms <= db.now_ms() - patience_ms, tried.correlate_except(row)
    )


def size() -> sa.ColumnElement[int]:
    """The slots of a deployable that nobody has any of, which is grouped with its handles."""
    number = sa.func.count(_HANDLE.id)
    limit = _DEPLOYABLE.num_accelerators
    return sa.case((number < limit, number), else_=limit)


def _free() -> sa.ColumnElement[int]:
    """The slots of a deployable that are free, which is grouped with its handles and their ARQs.

    Each handle that somebody has takes an accelerator.
    """
    number = _count_if(sa.and_(_HANDLE.missing.is_(False), _ARQ.id.is_(None)))
    left = _DEPLOYABLE.num_accelerators - _count_if(_ARQ.id.is_not(None))
    return sa.case((left < 0, 0), (number < left, number), else_=left)


def _used() -> sa.ColumnElement[int]:
    """The slots of a deployable that ARQs hold, which is grouped likewise.

    A guest may hold several handles that are one accelerator.
    """
    held, there = _count_if(_ARQ.id.is_not(None)), _count_if(_HANDLE.missing.is_(False))
    limit = _DEPLOYABLE.num_accelerators
    return sa.case((sa.and_(there > limit, held > limit), limit), else_=held)


def _is_ready() -> sa.ColumnElement[bool]:
    """Whether what is free of a deployable can be given now to those who ask for what it runs."""
    known = sa.and_(_DEPLOYABLE.program_mode.is_not(None), _DEPLOYABLE.is_settled)
    return sa.and_(usable(), known, ~is_programmed_now())


def ready_of(functions: Collection[str]) -> sa.Subquery:
    """How many slots of each function, by its plain form, are free anywhere, if any is there."""
    each = (
        sa.select(_DEPLOYABLE.function_plain, _free().label("slots"))
        .select_from(_DEPLOYABLE)
        .join(_DEVICE, _DEVICE.id == _DEPLOYABLE.device_id)
        .join(_HOST, _HOST.id == _DEVICE.host_id)
        .join(_HANDLE, _HANDLE.deployable_id == _DEPLOYABLE.id)
        .outerjoin(_ARQ, _ARQ.attach_handle_id == _HANDLE.id)
        .where(_DEPLOYABLE.function_plain.in_(functions), _is_ready())
        .group_by(_DEPLOYABLE.id)
        .subquery()
    )
    total = sa.func.sum(each.c.slots).label("slots")
    return sa.select(each.c.function_plain, total).group_by(each.c.function_plain).subquery()


def count(
    session: orm.Session,
    pools: Collection[models.FunctionPool],
    *,
    patience_ms: int | None = None,
) -> dict[int, Counts]:
    """The counts of pools by their ids. From three SELECTs.

    ``patience_ms`` is how long an operation may take before it can be stalled; None: any time.
    """
    ids = [pool.id for pool in pools]
    missed = _misses(session, ids) if ids else {}
    running = _running(session, ids) if ids else {}
    coming = _coming(session, ids, patience_ms) if ids else {}
    found: dict[int, Counts] = {}
    for pool in pools:
        misses = missed.get(pool.id, 0)
        ready, used, devices = running.get(pool.id, (0, 0, 0))
        pending, stalled, being, moving = coming.get(pool.id, (0, 0, 0, 0))
        found[pool.id] = Counts(
            wanted=pool.free + misses,
            misses=misses,
            ready=ready,
            used=used,
            pending=pending,
            stalled=stalled,
            devices=devices + being,
            coming=moving,
        )
    return found


def _misses(session: orm.Session, ids: Collection[int]) -> dict[int, int]:
    miss = models.FunctionMiss
    query = sa.select(miss.pool_id, sa.func.sum(miss.slots)).where(miss.pool_id.in_(ids))
    return {row[0]: int(row[1]) for row in session.execute(query.group_by(miss.pool_id))}


def _running(session: orm.Session, ids: Collection[int]) -> dict[int, tuple[int, int, int]]:
    """Ready slots, used slots and deployables, by pool."""
    held = _count_if(_ARQ.id.is_not(None))
    certain = sa.and_(usable(), _DEPLOYABLE.is_settled)
    each = (
        sa.select(
            _POOL.id,
            sa.case((_is_ready(), _free()), else_=0).label("ready"),
            _used().label("used"),
            sa.case((sa.or_(held > 0, certain), 1), else_=0).label("serves"),
        )
        .select_from(_POOL)
        .join(_DEPLOYABLE, runs(_POOL))
        .join(_DEVICE, _DEVICE.id == _DEPLOYABLE.device_id)
        .join(_HOST, _HOST.id == _DEVICE.host_id)
        .join(_HANDLE, _HANDLE.deployable_id == _DEPLOYABLE.id)
        .outerjoin(_ARQ, _ARQ.attach_handle_id == _HANDLE.id)
        .where(_POOL.id.in_(ids), matches(_POOL))
        .group_by(_POOL.id, _DEPLOYABLE.id, _DEVICE.id, _HOST.id)
        .subquery()
    )
    return {row[0]: (row[1], row[2], row[3]) for row in _sums(session, each)}


def _coming(
    session: orm.Session, ids: Collection[int], patience_ms: int | None
) -> dict[int, tuple[int, int, int, int]]:
    """What is being programmed for it, by pool: slots, also stalled; deployables, also those not.

    What cannot be used does not count: it may never end. An operation that waits for Glance or
    Placement, and has reserved nothing, is not stalled: another one would wait for the same.
    """
    for_it = sa.and_(
        _OPERATION.function_id == _POOL.function_id,
        sa.or_(_POOL.image_uuid.is_(None), _POOL.image_uuid == _OPERATION.image_uuid),
    )
    stalled = sa.and_(_OPERATION.state != operations.QUEUED, is_stalled(patience_ms))
    slots = sa.case((for_it, _free()), else_=0)
    each = (
        sa.select(
            _POOL.id,
            slots.label("slots"),
            sa.case((stalled, slots), else_=0).label("stalled"),
            sa.literal(1).label("device"),
            sa.case((stalled, 0), else_=1).label("moving"),
        )
        .select_from(_POOL)
        .join(_OPERATION, _OPERATION.pool_uuid == _POOL.uuid)
        .join(_DEPLOYABLE, _DEPLOYABLE.uuid == _OPERATION.active)
        .join(_DEVICE, _DEVICE.id == _DEPLOYABLE.device_id)
        .join(_HOST, _HOST.id == _DEVICE.host_id)
        .outerjoin(_HANDLE, _HANDLE.deployable_id == _DEPLOYABLE.id)
        .outerjoin(_ARQ, _ARQ.attach_handle_id == _HANDLE.id)
        .where(_POOL.id.in_(ids), usable())
        .group_by(_POOL.id, _OPERATION.id, _DEPLOYABLE.id)
        .subquery()
    )
    return {row[0]: (row[1], row[2], row[3], row[4]) for row in _sums(session, each)}


def _sums(session: orm.Session, each: sa.Subquery) -> list[list[int]]:
    """The sums of the other columns by the first one."""
    key, *rest = each.c
    query = sa.select(key, *(sa.func.sum(column) for column in rest)).group_by(key)
    return [[int(value) for value in row] for row in session.execute(query)]


def _count_if(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))
