# SPDX-License-Identifier: Apache-2.0
"""The slots of function pools: how many are free, used or being programmed.

A slot is a free attach handle, as long as its deployable has accelerators left: a card whose two
handles are one accelerator has one slot. The database counts for all pools at once, in a constant
number of statements.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, work
from cyborg.common import program_modes
from cyborg.db import models
from cyborg.drivers import base
from cyborg.placement import audit
from cyborg.programming import layouts, operations
from cyborg.states import availability

_POOL = models.FunctionPool
_DEPLOYABLE, _DEVICE, _HOST = models.Deployable, models.Device, models.Host
_HANDLE, _ARQ, _OPERATION = models.AttachHandle, models.Arq, models.Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The slots and deployables of a pool."""

    #: How many slots should be free: those of the pool, and those that were missed lately.
    wanted: int
    misses: int = 0
    #: Free slots, slots that ARQs hold, and slots of deployables that are being programmed.
    ready: int = 0
    used: int = 0
    pending: int = 0
    #: Slots among the pending ones whose programming is stalled.
    stalled: int = 0
    #: Deployables that run the function or are being programmed with it, and how many of the
    #: latter are not stalled.
    devices: int = 0
    coming: int = 0

    @property
    def surplus(self) -> int:
        """Free slots beyond what is wanted: other pools may have them."""
        return max(0, self.ready - self.wanted)

    @property
    def shortage(self) -> int:
        """Wanted slots that are neither free now nor soon."""
        return max(0, self.wanted - self.ready - self.pending + self.stalled)


def on_hosts(*columns: Any) -> sa.Select[Any]:
    """Columns of all deployables, with their devices and hosts."""
    query = sa.select(*columns).select_from(_DEPLOYABLE)
    return query.join(_DEPLOYABLE.device).join(_DEVICE.host)


def matches(pool: Any) -> sa.ColumnElement[bool]:
    """The deployable fits the pool by its host and its traits."""
    names = (_HOST.name, _HOST.node)
    named = [sa.func.lower(name).like(pool.hosts_like, escape="!") for name in names]
    trait, attribute = models.FunctionPoolTrait, models.Attribute
    has = sa.exists().where(
        attribute.deployable_id == _DEPLOYABLE.id,
        attribute.key.startswith(base.TRAIT_PREFIX),
        db.exactly(attribute.value) == trait.trait,
    )
    # By default a subquery is correlated with the next query around it only.
    has = has.correlate_except(attribute)
    lacks = sa.exists().where(trait.pool_id == pool.id, ~has).correlate_except(trait)
    return sa.and_(sa.or_(pool.hosts_like.is_(None), *named), ~lacks)


def runs(pool: Any) -> sa.ColumnElement[bool]:
    """The deployable runs the pool's function; written from the pool's image, if it has one."""
    image = sa.or_(pool.image_uuid.is_(None), pool.image_uuid == _DEPLOYABLE.bitstream_id)
    return sa.and_(pool.function_plain == _DEPLOYABLE.function_plain, image)


def demand() -> sa.ColumnElement[int]:
    """The rank of who needs what the deployable runs: 0 if it runs nothing, 2 for a pool, else 1.

    Where there is a choice, what fewer ask for is taken first.
    """
    pool = orm.aliased(_POOL)
    wanted = sa.exists().where(runs(pool), matches(pool)).correlate_except(pool)
    return sa.case((availability.blank(), 0), (wanted, 2), else_=1)


def pool_of(session: orm.Session, deployable: models.Deployable) -> models.FunctionPool | None:
    """The oldest pool whose function a deployable runs, if there is one."""
    query = (
        on_hosts(_POOL)
        .join(_POOL, runs(_POOL))
        .where(_DEPLOYABLE.id == deployable.id, matches(_POOL))
        .order_by(_POOL.id)
        .limit(1)
    )
    found: models.FunctionPool | None = session.scalar(query)
    return found


def is_programmed_now() -> sa.ColumnElement[bool]:
    """An operation on the deployable has not ended."""
    on_it = sa.exists().where(_OPERATION.active == _DEPLOYABLE.uuid)
    return on_it.correlate_except(_OPERATION)


def is_stalled(patience_ms: int | None) -> sa.ColumnElement[bool]:
    """An operation that has not ended is older than that, and its last attempt failed.

    It is not stalled while a conductor works on it. None: no operation is.
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
    return sa.and_(_OPERATION.asked_ms <= db.now_ms() - patience_ms, tried.correlate_except(row))


def has_layouts() -> sa.ColumnElement[bool]:
    """The deployable has a layout, whose handles are other ones than those of the next layout."""
    return sa.func.coalesce(_DEPLOYABLE.program_mode, "") == program_modes.LAYOUT


def can_run(pool: Any) -> sa.ColumnElement[bool]:
    """Only of a deployable with layouts it is known which it can have; none has an image."""
    known = sa.func.coalesce(layouts.accelerators(pool.function_plain), 0)
    return sa.or_(~has_layouts(), sa.and_(pool.image_uuid.is_(None), known > 0))


def size(pool: Any) -> sa.ColumnElement[int]:
    """The slots of an unused deployable that runs the pool's function.

    The query groups its handles by deployable and pool.
    """
    number, limit = sa.func.count(_HANDLE.id), _DEPLOYABLE.num_accelerators
    then = sa.func.coalesce(layouts.accelerators(pool.function_plain), 0)
    return sa.case((has_layouts(), then), (number < limit, number), else_=limit)


def _free(*, soon: bool = False) -> sa.ColumnElement[int]:
    """The free slots of a deployable. The query groups its handles and their ARQs by deployable.

    ``soon``: so is a handle that waits for the operation that overwrites what its guest has left.
    """
    held: sa.ColumnElement[bool] = _HANDLE.is_kept_beside(_ARQ)
    if soon:
        held = sa.and_(held, ~_HANDLE.is_to_overwrite)
    number = _count_if(sa.and_(_HANDLE.missing.is_(False), ~held))
    return availability.free_accelerators(number, _count_if(held))


def _used() -> sa.ColumnElement[int]:
    """The slots of a deployable that ARQs hold. The query groups as for :func:`_free`.

    A guest may hold several handles that are one accelerator.
    """
    held, there = _count_if(_HANDLE.is_kept_beside(_ARQ)), _count_if(_HANDLE.missing.is_(False))
    limit = _DEPLOYABLE.num_accelerators
    return sa.case((sa.and_(there > limit, held > limit), limit), else_=held)


@functools.cache
def _is_ready() -> sa.ColumnElement[bool]:
    """The free slots of the deployable can be given out now, with the function that it runs."""
    is_there = sa.and_(_DEPLOYABLE.program_mode.is_not(None), ~audit.has_no_root())
    known = sa.and_(is_there, ~is_programmed_now())
    return sa.and_(availability.on_offer(), ~availability.tainted(), known)


def ready_of(functions: Collection[str]) -> sa.Subquery:
    """Columns ``function_plain`` and ``slots``: free slots by function, on all hosts together."""
    each = (
        on_hosts(_DEPLOYABLE.function_plain, _free().label("slots"))
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
    """The counts of pools by their ids. Three SELECTs.

    ``patience_ms`` is the age from which an operation can be stalled; None: no operation is.
    """
    ids = [pool.id for pool in pools]
    missed = _misses(session, ids) if ids else {}
    running = _running(session, ids) if ids else {}
    coming = _coming(session, ids, patience_ms) if ids else {}
    found: dict[int, Counts] = {}
    for pool in pools:
        misses = missed.get(pool.id, 0)
        here, soon = running.get(pool.id, {}), coming.get(pool.id, {})
        devices = here.pop("serves", 0) + soon.pop("device", 0)
        wanted = pool.free + misses
        found[pool.id] = Counts(wanted=wanted, misses=misses, devices=devices, **here, **soon)
    return found


def _misses(session: orm.Session, ids: Collection[int]) -> dict[int, int]:
    miss = models.FunctionMiss
    query = sa.select(miss.pool_id, sa.func.sum(miss.slots)).where(miss.pool_id.in_(ids))
    return {row[0]: int(row[1]) for row in session.execute(query.group_by(miss.pool_id))}


def _running(session: orm.Session, ids: Collection[int]) -> dict[int, dict[str, int]]:
    """Ready slots, used slots and deployables, by pool."""
    held = _count_if(_HANDLE.is_kept_beside(_ARQ))
    certain = sa.and_(availability.open_to_all(), models.Deployable.is_settled)
    each = (
        sa.select(
            _POOL.id,
            sa.case((_is_ready(), _free()), else_=0).label("ready"),
            _used().label("used"),
            sa.case((sa.or_(held > 0, certain), 1), else_=0).label("serves"),
        )
        .select_from(_POOL)
        .join(_DEPLOYABLE, runs(_POOL))
        .join(_DEPLOYABLE.device)
        .join(_DEVICE.host)
        .join(_HANDLE, _HANDLE.deployable_id == _DEPLOYABLE.id)
        .outerjoin(_ARQ, _ARQ.attach_handle_id == _HANDLE.id)
        .where(_POOL.id.in_(ids), matches(_POOL))
        .group_by(_POOL.id, _DEPLOYABLE.id, _DEVICE.id, _HOST.id)
        .subquery()
    )
    return _sums(session, each)


def _coming(
    session: orm.Session, ids: Collection[int], patience_ms: int | None
) -> dict[int, dict[str, int]]:
    """By pool: slots being programmed, those stalled; deployables, those not stalled.

    An unusable deployable does not count, as its operation may never end. An operation that waits
    for Glance or Placement, and has reserved nothing, is not stalled: another one would wait too.
    """
    for_it = sa.and_(
        _OPERATION.function_id == _POOL.function_id,
        sa.or_(_POOL.image_uuid.is_(None), _POOL.image_uuid == _OPERATION.image_uuid),
    )
    stalled = sa.and_(_OPERATION.state != operations.QUEUED, is_stalled(patience_ms))
    # Nobody has any of a deployable that is given a layout.
    then = sa.case((has_layouts(), size(_POOL)), else_=_free(soon=True))
    slots = sa.case((for_it, then), else_=0)
    each = (
        sa.select(
            _POOL.id,
            slots.label("pending"),
            sa.case((stalled, slots), else_=0).label("stalled"),
            sa.literal(1).label("device"),
            sa.case((stalled, 0), else_=1).label("coming"),
        )
        .select_from(_POOL)
        .join(_OPERATION, _OPERATION.pool_uuid == _POOL.uuid)
        .join(_DEPLOYABLE, _DEPLOYABLE.uuid == _OPERATION.active)
        .join(_DEPLOYABLE.device)
        .join(_DEVICE.host)
        .outerjoin(_HANDLE, _HANDLE.deployable_id == _DEPLOYABLE.id)
        .outerjoin(_ARQ, _ARQ.attach_handle_id == _HANDLE.id)
        .where(_POOL.id.in_(ids), availability.open_to_all())
        .group_by(_POOL.id, _OPERATION.id, _DEPLOYABLE.id)
        .subquery()
    )
    return _sums(session, each)


def _sums(session: orm.Session, each: sa.Subquery) -> dict[int, dict[str, int]]:
    """The sums of the other columns by their names, by the values of the first one."""
    key, *rest = each.c
    query = sa.select(key, *(sa.func.sum(column) for column in rest)).group_by(key)
    names = [column.name for column in rest]
    return {
        first: dict(zip(names, map(int, sums), strict=True))
        for first, *sums in session.execute(query)
    }


def _count_if(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))
