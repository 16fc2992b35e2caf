# SPDX-License-Identifier: Apache-2.0
"""Misses: a consumer wanted a slot of a function and none was free.

Every pool of the function keeps the miss for a while, and may grow by it.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, profiles, work
from cyborg.common import errors, request_groups
from cyborg.db import models
from cyborg.function_pools import capacity
from cyborg.policy.context import RequestContext
from cyborg.programming import program

LOG = logging.getLogger(__name__)

_POOL, _MISS = models.FunctionPool, models.FunctionMiss


def note_shortage(
    session: orm.Session, groups: Iterable[Mapping[str, str]], project_id: str | None
) -> None:
    """Record the slots that are not free now for a project that asks for these groups.

    A pool keeps, for each project, the most that it has missed at once. Costs no query if no group
    asks for a function.
    """
    needed = _needed(groups)
    if needed:
        ready = capacity.ready_of(needed)
        query = (
            sa.select(_POOL, sa.func.coalesce(ready.c.slots, 0))
            .outerjoin(ready, ready.c.function_plain == _POOL.function_plain)
            .where(_POOL.function_plain.in_(needed))
        )
        found = [(row[0], int(row[1])) for row in session.execute(query)]
        short = {pool: needed[pool.function_plain] - free for pool, free in found}
        missed = {pool: count for pool, count in short.items() if count > 0}
        _remember(session, missed, project_id)


def post_of_function(function_id: str) -> list[models.FunctionPool]:
    """Record that a slot of the function was missed; return the pools that may grow by it."""
    return _record({program.plain(function_id): 1})


def post_of_profile(ctx: RequestContext, name: str) -> list[models.FunctionPool]:
    """Record that the slots of a device profile were missed; return the pools that may grow by it.

    :raises NotFound: the caller may use no profile of that name
    :raises Invalid: it asks for no function
    """
    needed = _needed(profiles.read_named(ctx, name))
    if not needed:
        raise errors.Invalid(
            f"device_profile_name: no group of device profile {name} has the key "
            f"{request_groups.FUNCTION_ID}."
        )
    return _record(needed)


def _needed(groups: Iterable[Mapping[str, str]]) -> dict[str, int]:
    """The number of slots of each function, in its plain form, that are asked for."""
    needed = collections.Counter[str]()
    for group in map(request_groups.RequestGroup.parse, groups):
        if group.function_id:
            needed[program.plain(group.function_id)] += group.accelerators
    return +needed


@db.retry
def _record(needed: Mapping[str, int]) -> list[models.FunctionPool]:
    query = sa.select(_POOL).where(_POOL.function_plain.in_(needed)).order_by(_POOL.id)
    with db.writer() as session:
        found = list(session.scalars(query))
        _remember(session, {pool: needed[pool.function_plain] for pool in found})
    return found


def _remember(
    session: orm.Session,
    missed: Mapping[models.FunctionPool, int],
    project_id: str | None = None,
) -> None:
    if not missed:
        return
    rows: list[dict[str, Any]] = [
        {
            "pool_id": pool.id,
            "slots": count,
            "project_id": project_id,
            "at_ms": db.now_ms(),
            "created_at": models.utcnow(),
        }
        for pool, count in missed.items()
    ]
    slots_now = sa.case({pool.id: count for pool, count in missed.items()}, value=_MISS.pool_id)
    most = sa.case((_MISS.slots > slots_now, _MISS.slots), else_=slots_now)
    again = {"slots": most, "at_ms": db.now_ms()}
    # A pool may have been deleted meanwhile.
    with db.restarting():
        db.upsert(session, _MISS, rows, key=["pool_id", "project_id"], update=again)
    work.want(session, work.FUNCTION_POOL, [pool.uuid for pool in missed])
    said = [f"{count} of {pool.function_id} for pool {pool.name}" for pool, count in missed.items()]
    db.after_commit(session, lambda: LOG.info("Free slots were missed: %s", ", ".join(said)))
