# SPDX-License-Identifier: Apache-2.0
"""Keeps function pools filled: idle deployables are programmed before a consumer asks.

Each run for a pool is one transaction. If slots are short it locks all pools, so that two pools
that want the same deployable do not both count on it, and asks for a few operations. Those do the
rest, under the same guards as any other. Nothing is reverted: slots that are not wanted any more
stay programmed until another pool, or a bind, needs the deployable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, work
from cyborg.common import errors
from cyborg.common.reasons import Reason, is_news
from cyborg.db import locks, models
from cyborg.function_pools import capacity, nearness
from cyborg.function_pools.pools import FEWER
from cyborg.programming import layouts, operations, program, using_arqs
from cyborg.states import availability

LOG = logging.getLogger(__name__)

_POOL = models.FunctionPool
_DEPLOYABLE, _DEVICE, _HOST = models.Deployable, models.Device, models.Host
_HANDLE, _OPERATION = models.AttachHandle, models.Operation

#: Pools that one run of the periodic task marks as due.
_BATCH = 500

#: Deployables that are considered for one pool at once.
_CONSIDERED = 100

#: Codes of the reason of a pool: all that can be programmed is, or operations do not go on, too.
_SHORT, _STALLED = "short", "stalled"

_LARGE, _FAILED = "large", "failed"


def want_due(conf: cfg.ConfigOpts) -> None:
    """Want each pool to be filled, once in ``[programming] pool_interval``."""
    due = _POOL.looked_ms <= db.now_ms() - conf.programming.pool_interval * 1000
    db.change_due(_POOL, due, limit=_BATCH, change=_want)


def _want(session: orm.Session, pools: list[models.FunctionPool]) -> None:
    _set(session, _POOL.id.in_([pool.id for pool in pools]), looked_ms=db.now_ms())
    work.want(session, work.FUNCTION_POOL, [pool.uuid for pool in pools])


def _set(session: orm.Session, which: sa.ColumnElement[bool], **values: object) -> None:
    """Change columns that are not the administrator's: ``updated_at`` stays as it is."""
    db.update(session, _POOL, which, updated_at=_POOL.updated_at, **values)


@db.retry
def fill(conf: cfg.ConfigOpts, item: work.Item) -> None:
    """Ask for the next operations that a pool needs: the handler of ``function-pool/<uuid>``."""
    with work.holding(item) as session:
        pool = session.scalar(sa.select(_POOL).where(_POOL.uuid == item.key))
        if pool is None:
            return
        miss = models.FunctionMiss
        old = miss.at_ms <= db.now_ms() - conf.programming.miss_memory * 1000
        db.delete(session, miss, miss.pool_id == pool.id, old)
        retry_ms = conf.programming.pool_retry * 1000
        found = capacity.count(session, [pool], patience_ms=retry_ms)[pool.id]
        stalled = _why_stalled(session, pool, retry_ms) if found.ready < found.wanted else None
        grow = found.shortage > 0
        reason = _grow(conf, session, pool, stalled) if grow else _reason(None, stalled)
        if is_news(_present(pool), reason):
            words, code = (reason.whole, reason.code) if reason else (None, None)
            _set(session, _POOL.id == pool.id, reason=words, reason_code=code)


def _present(pool: models.FunctionPool) -> Reason | None:
    return Reason(pool.reason_code or _SHORT, FEWER, pool.reason) if pool.reason else None


def _reason(why_short: str | None, why_stalled: str | None) -> Reason | None:
    words = " ".join(filter(None, [why_short, why_stalled]))
    return Reason(_STALLED if why_stalled else _SHORT, FEWER, words) if words else None


def _grow(
    conf: cfg.ConfigOpts,
    session: orm.Session,
    pool: models.FunctionPool,
    stalled: str | None,
) -> Reason | None:
    """Ask for operations; return why the pool will still be short of slots."""
    locks.take(session, locks.FUNCTION_POOLS)
    # Nor are pools changed or deleted meanwhile. Recording a miss does not wait for this lock.
    query = sa.select(_POOL).order_by(_POOL.id).with_for_update(key_share=True)
    pools = list(session.scalars(query.execution_options(populate_existing=True)))
    if pool not in pools:
        raise db.RestartTransaction
    retry_ms = conf.programming.pool_retry * 1000
    counts = capacity.count(session, pools, patience_ms=retry_ms)
    search = _FillSearch(
        pool=pool,
        own=counts[pool.id],
        surplus={pool_id: found.surplus for pool_id, found in counts.items()},
        retry_ms=retry_ms,
    )
    steps = conf.programming.pool_step
    if search.own.shortage and search.room > 0 and search.own.coming >= steps:
        # What else can be programmed is examined when these have ended.
        kept = None if pool.reason_code == _STALLED else _present(pool)
        return _reason(None, stalled) or kept
    why_not = _ask_for_operations(session, search, steps) if search.own.shortage else None
    return _reason(why_not, stalled)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FillSearch:
    """A search for deployables to program for a pool that is short of slots."""

    pool: models.FunctionPool
    own: capacity.Counts
    #: Slots that each pool can spare, by its id.
    surplus: Mapping[int, int]
    #: How long a deployable is left alone after its programming for the pool has failed.
    retry_ms: int

    @property
    def room(self) -> int:
        """The number of deployables that the pool may have in addition."""
        return self.pool.max_devices - self.own.devices

    @property
    def needy(self) -> list[int]:
        """The ids of the pools that can spare no slot."""
        return [pool_id for pool_id, spare in self.surplus.items() if not spare]


def _ask_for_operations(session: orm.Session, search: _FillSearch, steps: int) -> str | None:
    """Ask for operations; return why they do not end the shortage, or None."""
    own, most = search.own, search.pool.max_devices
    if search.room <= 0:
        return f"It has {own.devices} deployables, and max_devices is {most}."
    steps -= own.coming
    chosen = _choose(session, search, min(steps, search.room))
    given = sum(each.slots for each in chosen if _ask(session, search.pool, each))
    if given >= own.shortage or len(chosen) == steps:
        return None
    if len(chosen) == search.room:
        return f"It will have {most} deployables, which is its max_devices."
    return _explain(session, search)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FillCandidate:
    """A deployable that may be programmed."""

    id: int
    uuid: str
    slots: int
    #: What to sort by before nearness: less is better.
    rank: tuple[int, ...]
    location: nearness.Location


def _ask(session: orm.Session, pool: models.FunctionPool, candidate: _FillCandidate) -> bool:
    deployable = operations.lock(session, candidate.uuid)
    if deployable is None:
        return False
    what = program.Program(image_uuid=pool.image_uuid, function_id=pool.function_id)
    try:
        layouts.refuse(session, deployable, what)
        operations.request(
            session,
            deployable,
            what,
            asked_by=f"function pool {pool.name}",
            pool_uuid=pool.uuid,
        )
    except (errors.Conflict, errors.Invalid, errors.NotOffered) as exc:
        # It was taken before the lock; the next run chooses another.
        LOG.info("Function pool %s skips deployable %s: %s", pool.name, candidate.uuid, exc)
        return False
    return True


def _choose(session: orm.Session, search: _FillSearch, most: int) -> list[_FillCandidate]:
    """The deployables to program for a pool, ``most`` at most, in the order of their ids.

    First those that run nothing, then those that run what no pool wants, then those that other
    pools can spare. Among these, first the one that ends the shortage with the fewest slots, then
    the one nearest to what the pool has. Three SELECTs.
    """
    size, shortage = capacity.size(_POOL), search.own.shortage
    # One with layouts may have no handles yet.
    offers = sa.or_(
        capacity.has_layouts(),
        sa.and_(_HANDLE.id.is_not(None), _DEPLOYABLE.num_accelerators > 0),
    )
    rank = (
        capacity.demand(),
        sa.case((size >= shortage, 0), else_=1),
        sa.func.abs(size - shortage),
    )
    query = (
        _others(search)
        .with_only_columns(
            _DEPLOYABLE.id, _DEPLOYABLE.uuid, size, *rank, *nearness.columns()
        )
        .outerjoin(_HANDLE, sa.and_(_HANDLE.deployable_id == _DEPLOYABLE.id, ~_HANDLE.missing))
        .where(
            offers,
            availability.open_to_all(),
            ~_is_busy(),
            ~using_arqs.in_use(),
            ~_is_of(search.needy),
            ~_failed(search),
        )
        .group_by(_DEPLOYABLE.id, _DEVICE.id, _HOST.id, _POOL.id)
        .order_by(*rank, _DEPLOYABLE.id)
        .limit(_CONSIDERED)
    )
    found = [_candidate(tuple(row)) for row in session.execute(query)]
    if not found:
        return []
    near = nearness.of_pool(session, search.pool)
    taken = _take(found, _owners(session, found), search, most, near)
    return sorted(taken, key=lambda candidate: candidate.id)


def _candidate(row: tuple[Any, ...]) -> _FillCandidate:
    number, uuid, slots, *rest = row
    rank, location = tuple(rest[: -nearness.WIDTH]), nearness.location(rest[-nearness.WIDTH :])
    return _FillCandidate(id=number, uuid=uuid, slots=slots, rank=rank, location=location)


def _take(
    candidates: Iterable[_FillCandidate],
    owners: Mapping[int, list[int]],
    search: _FillSearch,
    most: int,
    near: nearness.Neighbours,
) -> list[_FillCandidate]:
    """As many as are needed; none that one of the pools that it belongs to cannot spare."""
    surplus, taken = dict(search.surplus), list[_FillCandidate]()
    shortage, left = search.own.shortage, list(candidates)
    while left and shortage > 0 and len(taken) < most:
        candidate = min(left, key=lambda each: (*each.rank, near.distance(each.location), each.id))
        left.remove(candidate)
        of = owners.get(candidate.id, [])
        if all(surplus[pool_id] >= candidate.slots for pool_id in of):
            taken.append(candidate)
            near.add(candidate.location)
            shortage -= candidate.slots
            surplus |= {pool_id: surplus[pool_id] - candidate.slots for pool_id in of}
    return taken


def _owners(session: orm.Session, candidates: Iterable[_FillCandidate]) -> dict[int, list[int]]:
    """The pools whose functions deployables run, by the ids of the deployables."""
    query = (
        capacity.on_hosts(_DEPLOYABLE.id, _POOL.id)
        .join(_POOL, capacity.runs(_POOL))
        .where(_DEPLOYABLE.id.in_([each.id for each in candidates]), capacity.matches(_POOL))
    )
    owners: dict[int, list[int]] = {}
    for deployable_id, pool_id in session.execute(query):
        owners.setdefault(deployable_id, []).append(pool_id)
    return owners


def _explain(session: orm.Session, search: _FillSearch) -> str:
    """Why no more deployables can be programmed for a pool. Two SELECTs at most."""
    found: dict[str, sa.ColumnElement[bool]] = {
        "disabled, unhealthy, missing or on a host that is down": ~availability.usable(),
        "tainted": availability.tainted(),
        "in use": using_arqs.in_use(),
        "being programmed": _is_busy(),
        _FAILED: _failed(search),
        "needed by another pool": _is_of(search.needy),
    }
    called = {
        _FAILED: f"failed in the last {search.retry_ms // 1000} s",
        _LARGE: "needed in part by another pool",
    }
    which = sa.case(*((holds, name) for name, holds in found.items()), else_=_LARGE)
    inner = _others(search).with_only_columns(which.label("kind"))
    # A missing deployable has no accelerators any more.
    offers = sa.or_(_DEPLOYABLE.num_accelerators > 0, ~availability.usable())
    has_handles = sa.exists().where(_HANDLE.deployable_id == _DEPLOYABLE.id)
    inner = inner.where(sa.or_(capacity.has_layouts(), sa.and_(has_handles, offers)))
    each = inner.subquery()
    query = sa.select(each.c.kind, sa.func.count()).group_by(each.c.kind)
    counts: dict[str, int] = {row[0]: row[1] for row in session.execute(query)}
    if not counts:
        return "No programmable deployable is left for the pool."
    named = sorted((called.get(kind, kind), number) for kind, number in counts.items())
    told = ", ".join(f"{number} {name}" for name, number in named)
    total = sum(counts.values())
    sentence = f"No other deployable can be programmed now; of {total} that match: {told}."
    return f"{sentence} {_last_error(session, search)}" if _FAILED in counts else sentence


def _last_error(session: orm.Session, search: _FillSearch) -> str:
    query = (
        sa.select(_OPERATION.error)
        .where(_OPERATION.pool_uuid == search.pool.uuid, _OPERATION.state == operations.FAILED)
        .order_by(_OPERATION.id.desc())
        .limit(1)
    )
    return f"The last failure: {session.scalar(query)}"


def _why_stalled(
    session: orm.Session, pool: models.FunctionPool, patience_ms: int
) -> str | None:
    """Why operations of a pool are stalled, or None if none is. One SELECT."""
    row = models.Work
    query = (
        sa.select(row.last_error, sa.func.count().over())
        .select_from(_OPERATION)
        .join(row, sa.and_(row.kind == work.PROGRAM, row.key == _OPERATION.active))
        .where(_OPERATION.pool_uuid == pool.uuid, capacity.is_stalled(patience_ms))
        .order_by(_OPERATION.id.desc())
        .limit(1)
    )
    found = session.execute(query).one_or_none()
    if found is None:
        return None
    return f"Stalled: {found[1]} of those being programmed. The last error: {found[0]}"


def _others(search: _FillSearch) -> sa.Select[Any]:
    """The programmable deployables that match a pool and do not run its function."""
    return (
        capacity.on_hosts(_DEPLOYABLE.id)
        .join(_POOL, _POOL.id == search.pool.id)
        .where(
            _DEPLOYABLE.program_mode.is_not(None),
            capacity.matches(_POOL),
            capacity.can_run(_POOL),
            sa.func.coalesce(sa.case((capacity.runs(_POOL), 1)), 0) == 0,
        )
    )


def _is_busy() -> sa.ColumnElement[bool]:
    return sa.or_(~models.Deployable.is_settled, capacity.is_programmed_now())


def _is_of(pool_ids: Iterable[int]) -> sa.ColumnElement[bool]:
    """The deployable runs the function of one of these pools, and matches it."""
    pool = orm.aliased(_POOL)
    of_one = (pool.id.in_(list(pool_ids)), capacity.runs(pool), capacity.matches(pool))
    return sa.exists().where(*of_one).correlate_except(pool)


def _failed(search: _FillSearch) -> sa.ColumnElement[bool]:
    """Programming the deployable so for the pool has failed less than ``retry_ms`` ago."""
    image = search.pool.image_uuid
    return sa.exists().where(
        _OPERATION.pool_uuid == search.pool.uuid,
        _OPERATION.deployable_uuid == _DEPLOYABLE.uuid,
        _OPERATION.function_id == search.pool.function_id,
        _OPERATION.image_uuid.is_(None) if image is None else _OPERATION.image_uuid == image,
        _OPERATION.state == operations.FAILED,
        _OPERATION.ended_ms > db.now_ms() - search.retry_ms,
    )
