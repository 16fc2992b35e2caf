# SPDX-License-Identifier: Apache-2.0
"""Slots: the attach handles of deployables that run a function, as function pools count them.

Whatever is asked of all pools is computed by the database, in a constant number of statements.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db import models, program_models

_POOL = program_models.FunctionPool
_DEPLOYABLE, _DEVICE, _HOST = models.Deployable, models.Device, models.Host
_HANDLE, _ARQ, _OPERATION = models.AttachHandle, models.Arq, program_models.Operation


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
    #: Deployables that run the function or are being given it, and the latter alone.
    devices: int = 0
    coming: int = 0

    @property
    def surplus(self) -> int:
        """Free slots that are not wanted: other pools may have them."""
        return max(0, self.ready - self.wanted)

    @property
    def lack(self) -> int:
        """Slots that are neither free nor soon will be."""
        return max(0, self.wanted - self.ready - self.pending)


def matches(pool: Any) -> sa.ColumnElement[bool]:
    """Whether a deployable may be of the pool, by its host and its traits."""
    names = [sa.func.lower(name).like(pool.hosts_like, escape="!") for name in _names()]
    trait, attribute = program_models.FunctionPoolTrait, models.Attribute
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


def _is_ready() -> sa.ColumnElement[bool]:
    """Whether a handle, joined with the ARQ that holds it, is a slot that is free."""
    return sa.and_(
        usable(),
        _DEPLOYABLE.in_doubt.is_(False),
        ~is_programmed_now(),
        _HANDLE.missing.is_(False),
        _ARQ.id.is_(None),
    )


def ready_of(function_plain: Any) -> sa.ScalarSelect[int]:
    """How many slots of a function are free anywhere."""
    query = (
        sa.select(sa.func.count(_HANDLE.id))
        .select_from(_DEPLOYABLE)
        .join(_DEVICE, _DEVICE.id == _DEPLOYABLE.device_id)
        .join(_HOST, _HOST.id == _DEVICE.host_id)
        .join(_HANDLE, _HANDLE.deployable_id == _DEPLOYABLE.id)
        .outerjoin(_ARQ, _ARQ.attach_handle_id == _HANDLE.id)
        .where(_DEPLOYABLE.function_plain == function_plain, _is_ready())
    )
    return query.scalar_subquery()


def count(
    session: orm.Session, pools: Collection[program_models.FunctionPool]
) -> dict[int, Counts]:
    """The counts of pools by their ids. From three SELECTs."""
    ids = [pool.id for pool in pools]
    missed = _misses(session, ids) if ids else {}
    running = _running(session, ids) if ids else {}
    coming = _coming(session, ids) if ids else {}
    found: dict[int, Counts] = {}
    for pool in pools:
        misses = missed.get(pool.id, 0)
        ready, used, devices = running.get(pool.id, (0, 0, 0))
        pending, being = coming.get(pool.id, (0, 0))
        found[pool.id] = Counts(
            wanted=pool.free + misses,
            misses=misses,
            ready=ready,
            used=used,
            pending=pending,
            devices=devices + being,
            coming=being,
        )
    return found


def _misses(session: orm.Session, ids: Collection[int]) -> dict[int, int]:
    miss = program_models.FunctionMiss
    query = sa.select(miss.pool_id, sa.func.sum(miss.slots)).where(miss.pool_id.in_(ids))
    return {row[0]: int(row[1]) for row in session.execute(query.group_by(miss.pool_id))}


def _running(session: orm.Session, ids: Collection[int]) -> dict[int, tuple[int, int, int]]:
    """Ready slots, used slots and deployables, by pool."""
    held = _ARQ.id.is_not(None)
    serves = sa.or_(held, sa.and_(usable(), _DEPLOYABLE.in_doubt.is_(False)))
    query = (
        sa.select(
            _POOL.id,
            _count_if(_is_ready()),
            _count_if(held),
            sa.func.count(sa.distinct(sa.case((serves, _DEPLOYABLE.id)))),
        )
        .select_from(_POOL)
        .join(_DEPLOYABLE, runs(_POOL))
        .join(_DEVICE, _DEVICE.id == _DEPLOYABLE.device_id)
        .join(_HOST, _HOST.id == _DEVICE.host_id)
        .join(_HANDLE, _HANDLE.deployable_id == _DEPLOYABLE.id)
        .outerjoin(_ARQ, _ARQ.attach_handle_id == _HANDLE.id)
        .where(_POOL.id.in_(ids), matches(_POOL))
        .group_by(_POOL.id)
    )
    return {row[0]: (int(row[1]), int(row[2]), row[3]) for row in session.execute(query)}


def _coming(session: orm.Session, ids: Collection[int]) -> dict[int, tuple[int, int]]:
    """Slots and deployables that are being programmed for it, by pool.

    What cannot be used does not count: it may never end.
    """
    for_it = sa.and_(
        _OPERATION.function_id == _POOL.function_id,
        sa.or_(_POOL.image_uuid.is_(None), _POOL.image_uuid == _OPERATION.image_uuid),
    )
    query = (
        sa.select(
            _POOL.id,
            _count_if(sa.and_(_HANDLE.id.is_not(None), for_it)),
            sa.func.count(sa.distinct(_DEPLOYABLE.id)),
        )
        .select_from(_POOL)
        .join(_OPERATION, _OPERATION.pool_uuid == _POOL.uuid)
        .join(_DEPLOYABLE, _DEPLOYABLE.uuid == _OPERATION.active)
        .join(_DEVICE, _DEVICE.id == _DEPLOYABLE.device_id)
        .join(_HOST, _HOST.id == _DEVICE.host_id)
        .outerjoin(
            _HANDLE, sa.and_(_HANDLE.deployable_id == _DEPLOYABLE.id, _HANDLE.missing.is_(False))
        )
        .where(_POOL.id.in_(ids), usable())
        .group_by(_POOL.id)
    )
    return {row[0]: (int(row[1]), row[2]) for row in session.execute(query)}


def _count_if(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))
