# SPDX-License-Identifier: Apache-2.0
"""Seeing to function pools: idle deployables are programmed before anybody asks.

Each look at a pool is one transaction. Where slots lack it locks all pools, so that two that want
the same deployable do not both count on it, and asks for a few operations; those do the rest, with
the same guards as any other. Nothing is ever taken back: what is not wanted any more stays
programmed until another pool, or somebody's bind, needs the deployable.
"""

from __future__ import annotations

import logging

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, errors, work
from cyborg.db import models
from cyborg.function_pools import candidates, capacity
from cyborg.programming import operations, program

LOG = logging.getLogger(__name__)

_POOL = models.FunctionPool

#: Pools that are looked at at once.
_BATCH = 500


def look(conf: cfg.ConfigOpts) -> None:
    """Want each pool to be seen to, once in ``[programming] pool_interval``."""
    due = _POOL.looked_ms <= db.now_ms() - conf.programming.pool_interval * 1000
    db.change_due(_POOL, due, limit=_BATCH, change=_want)


def _want(session: orm.Session, pools: list[program_models.FunctionPool]) -> None:
    _set(session, _POOL.id.in_([pool.id for pool in pools]), looked_ms=db.now_ms())
    work.want(session, work.FUNCTION_POOL, [pool.uuid for pool in pools])


def _set(session: orm.Session, which: sa.ColumnElement[bool], **values: object) -> None:
    """Change what no administrator says, and so not when the pool was changed."""
    db.update(session, _POOL, which, updated_at=_POOL.updated_at, **values)


@db.retry
def see_to(conf: cfg.ConfigOpts, claim: work.Claim) -> None:
    """Ask for the next few operations that bring a pool what it lacks: ``function-pool/<uuid>``."""
    with db.writer() as session:
        work.hold(session, claim)
        pool = session.scalar(sa.select(_POOL).where(_POOL.uuid == claim.key))
        if pool is None:
            return
        miss = models.FunctionMiss
        old = miss.at_ms <= db.now_ms() - conf.programming.miss_memory * 1000
        db.delete(session, miss, miss.pool_id == pool.id, old)
        retry_ms = conf.programming.pool_retry * 1000
        found = capacity.count(session, [pool], patience_ms=retry_ms)[pool.id]
        stall = candidates.stalls(session, pool, retry_ms) if found.ready < found.wanted else None
        reason = _grow(conf, session, pool, stall) if found.lack else stall
        if reason != pool.reason:
            _set(session, _POOL.id == pool.id, reason=reason)


def _grow(
    conf: cfg.ConfigOpts,
    session: orm.Session,
    pool: models.FunctionPool,
    stall: str | None,
) -> str | None:
    # Whoever records a miss need not wait for this lock.
    query = sa.select(_POOL).order_by(_POOL.id).with_for_update(key_share=True)
    pools = list(session.scalars(query.execution_options(populate_existing=True)))
    if pool not in pools:
        raise db.RestartTransaction
    counts = capacity.count(session, pools, patience_ms=conf.programming.pool_retry * 1000)
    look = _Look(conf, session, pool, counts)
    if look.must_wait():
        # Whether there are more to program is looked at when these are.
        return stall or (None if candidates.STALLED in (pool.reason or "") else pool.reason)
    return " ".join(filter(None, [look.grow(), stall])) or None


class _Look:
    """One look at a pool that lacks slots."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        session: orm.Session,
        pool: models.FunctionPool,
        counts: dict[int, capacity.Counts],
    ) -> None:
        self._session = session
        self._pool = pool
        self._counts = counts
        self._search = candidates.Search(
            pool=pool,
            lack=counts[pool.id].lack,
            surplus={pool_id: found.surplus for pool_id, found in counts.items()},
            retry_ms=conf.programming.pool_retry * 1000,
        )
        self._steps = conf.programming.pool_step

    def must_wait(self) -> bool:
        """Whether as many are being programmed as may be at the same time, and more may follow."""
        own = self._counts[self._pool.id]
        has_room = own.devices < self._pool.max_devices
        return own.lack > 0 and has_room and own.coming >= self._steps

    def grow(self) -> str | None:
        """Ask for operations; return why they cannot bring all that the pool lacks."""
        own, most = self._counts[self._pool.id], self._pool.max_devices
        if not own.lack:
            return None
        steps, room = self._steps - own.coming, most - own.devices
        if room <= 0:
            return f"It has {own.devices} deployables, and max_devices is {most}."
        chosen = candidates.choose(self._session, self._search, min(steps, room))
        given = sum(each.slots for each in chosen if self._ask(each))
        if given >= own.lack or len(chosen) == steps:
            return None
        if len(chosen) == room:
            return f"It will have {most} deployables, which is its max_devices."
        return candidates.explain(self._session, self._search)

    def _ask(self, candidate: candidates.Candidate) -> bool:
        deployable = operations.lock(self._session, candidate.uuid)
        if deployable is None:
            return False
        what = program.Program(
            image_uuid=self._pool.image_uuid, function_id=self._pool.function_id
        )
        try:
            operations.request(
                self._session,
                deployable,
                what,
                asked_by=f"function pool {self._pool.name}",
                pool_uuid=self._pool.uuid,
            )
        except (errors.Conflict, errors.NotOffered) as exc:
            # Somebody was faster than the lock; the next look chooses another.
            LOG.info("Function pool %s leaves %s: %s", self._pool.name, candidate.uuid, exc)
            return False
        return True
