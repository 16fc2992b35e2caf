# SPDX-License-Identifier: Apache-2.0
"""Idle deployables: which of them a function pool may have programmed, and why not the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, work
from cyborg.db import models
from cyborg.function_pools import capacity
from cyborg.programming import operations

_POOL = models.FunctionPool
_DEPLOYABLE, _DEVICE, _HOST = models.Deployable, models.Device, models.Host
_HANDLE, _ARQ, _OPERATION = models.AttachHandle, models.Arq, models.Operation

#: How many of those that are fit to be programmed are considered at once.
_CONSIDERED = 100

#: How the sentence begins on what does not go on.
STALLED = "Stalled: "

_LARGE = "needed in part by another pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is looked for: deployables for a pool that lacks some slots."""

    pool: models.FunctionPool
    lack: int
    #: Slots that each pool can do without, by its id.
    surplus: Mapping[int, int]
    #: How long a deployable is left alone whose programming for the pool has failed.
    retry_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A deployable that may be programmed."""

    id: int
    uuid: str
    slots: int


def choose(session: orm.Session, search: Search, most: int) -> list[Candidate]:
    """The deployables to program for a pool, ``most`` at most, in the order of their ids.

    First those that run nothing, then those that run what no pool wants, then those that other
    pools can do without; and of these the one that has what is lacking and least besides. From two
    SELECTs.
    """
    needy = [pool_id for pool_id, spare in search.surplus.items() if not spare]
    size = capacity.size()
    runs_nothing = sa.and_(
        _DEPLOYABLE.function_plain.is_(None), _DEPLOYABLE.bitstream_id.is_(None)
    )
    order = (
        sa.case((runs_nothing, 0), (~_is_of(search.surplus), 1), else_=2),
        sa.case((size >= search.lack, 0), else_=1),
        sa.func.abs(size - search.lack),
        _DEPLOYABLE.id,
    )
    query = (
        _others(search)
        .with_only_columns(_DEPLOYABLE.id, _DEPLOYABLE.uuid, size)
        .join(_HANDLE, sa.and_(_HANDLE.deployable_id == _DEPLOYABLE.id, ~_HANDLE.missing))
        .where(
            _DEPLOYABLE.num_accelerators > 0,
            ~_is_withheld(),
            ~_is_busy(),
            ~_is_held(),
            ~_is_of(needy),
            ~_failed(search),
        )
        .group_by(_DEPLOYABLE.id, _DEVICE.id, _HOST.id)
        .order_by(*order)
        .limit(_CONSIDERED)
    )
    found = [Candidate(id=row[0], uuid=row[1], slots=row[2]) for row in session.execute(query)]
    taken = _take(found, _owners(session, found), search, most) if found else []
    return sorted(taken, key=lambda candidate: candidate.id)


def _take(
    candidates: Iterable[Candidate],
    owners: Mapping[int, list[int]],
    search: Search,
    most: int,
) -> list[Candidate]:
    """As many as are needed, none of which any pool that it is of cannot do without."""
    surplus, taken = dict(search.surplus), list[Candidate]()
    lack = search.lack
    for candidate in candidates:
        if lack <= 0 or len(taken) == most:
            break
        of = owners.get(candidate.id, [])
        if all(surplus[pool_id] >= candidate.slots for pool_id in of):
            taken.append(candidate)
            lack -= candidate.slots
            surplus |= {pool_id: surplus[pool_id] - candidate.slots for pool_id in of}
    return taken


def _owners(session: orm.Session, candidates: Iterable[Candidate]) -> dict[int, list[int]]:
    """The pools whose functions deployables run, by the ids of the deployables."""
    query = (
        sa.select(_DEPLOYABLE.id, _POOL.id)
        .join(_DEVICE, _DEVICE.id == _DEPLOYABLE.device_id)
        .join(_HOST, _HOST.id == _DEVICE.host_id)
        .join(_POOL, capacity.runs(_POOL))
        .where(_DEPLOYABLE.id.in_([each.id for each in candidates]), capacity.matches(_POOL))
    )
    owners: dict[int, list[int]] = {}
    for deployable_id, pool_id in session.execute(query):
        owners.setdefault(deployable_id, []).append(pool_id)
    return owners


def explain(session: orm.Session, search: Search) -> str:
    """Why no more deployables can be programmed for a pool. From two SELECTs at most."""
    needy = [pool_id for pool_id, spare in search.surplus.items() if not spare]
    found: dict[str, sa.ColumnElement[bool]] = {
        "disabled, unhealthy, missing or on a host that is down": _is_withheld(),
        "in use": _is_held(),
        "being programmed": _is_busy(),
        f"failed in the last {search.retry_ms // 1000} s": _failed(search),
        "needed by another pool": _is_of(needy),
    }
    which = sa.case(*((holds, name) for name, holds in found.items()), else_=_LARGE)
    inner = _others(search).with_only_columns(which.label("why"))
    # What has vanished has no accelerators any more.
    offers = sa.or_(_DEPLOYABLE.num_accelerators > 0, _is_withheld())
    inner = inner.where(sa.exists().where(_HANDLE.deployable_id == _DEPLOYABLE.id), offers)
    each = inner.subquery()
    query = sa.select(each.c.why, sa.func.count()).group_by(each.c.why).order_by(each.c.why)
    counts: list[tuple[str, int]] = [(row[0], row[1]) for row in session.execute(query)]
    if not counts:
        return "There is no other programmable deployable that matches."
    said = ", ".join(f"{number} {name}" for name, number in counts)
    total = sum(number for _, number in counts)
    sentence = f"No other deployable can be programmed now; of {total} that match: {said}."
    return " ".join(filter(None, [sentence, _last_error(session, search, dict(counts))]))


def _last_error(session: orm.Session, search: Search, counts: Mapping[str, int]) -> str:
    if not any(name.startswith("failed") for name in counts):
        return ""
    query = (
        sa.select(_OPERATION.error)
        .where(_OPERATION.pool_uuid == search.pool.uuid, _OPERATION.state == operations.FAILED)
        .order_by(_OPERATION.id.desc())
        .limit(1)
    )
    return f"The last failure: {session.scalar(query)}"


def stalls(
    session: orm.Session, pool: models.FunctionPool, patience_ms: int
) -> str | None:
    """What keeps the operations of a pool that are stalled, or None. From one SELECT."""
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
    return f"{STALLED}{found[1]} of those being programmed. The last error: {found[0]}"


def _others(search: Search) -> sa.Select[Any]:
    """The programmable deployables that match a pool and do not run its function."""
    return (
        sa.select(_DEPLOYABLE.id)
        .select_from(_DEPLOYABLE)
        .join(_DEVICE, _DEVICE.id == _DEPLOYABLE.device_id)
        .join(_HOST, _HOST.id == _DEVICE.host_id)
        .join(_POOL, _POOL.id == search.pool.id)
        .where(
            _DEPLOYABLE.program_mode.is_not(None),
            capacity.matches(_POOL),
            sa.func.coalesce(sa.case((capacity.runs(_POOL), 1)), 0) == 0,
        )
    )


def _is_withheld() -> sa.ColumnElement[bool]:
    return ~capacity.usable()


def _is_busy() -> sa.ColumnElement[bool]:
    return sa.or_(~_DEPLOYABLE.is_settled, capacity.is_programmed_now())


def _is_held() -> sa.ColumnElement[bool]:
    """Whether an ARQ has a handle of the deployable, or is being bound to it.

    Likewise of one of the same device that is gone from the host under its name: its guests have
    the same hardware still.
    """
    same, own, binding = orm.aliased(_DEPLOYABLE), orm.aliased(_HANDLE), orm.aliased(_ARQ)
    it = sa.or_(same.id == _DEPLOYABLE.id, same.missing.is_(True))
    holds = sa.exists().where(own.deployable_id == same.id, binding.attach_handle_id == own.id)
    waits = sa.exists().where(
        binding.device_rp_uuid == same.rp_uuid, binding.state == models.BIND_STARTED
    )
    used = sa.or_(holds.correlate(same), waits.correlate(same))
    any_of = sa.exists().where(same.device_id == _DEPLOYABLE.device_id, it, used)
    return any_of.correlate_except(same)


def _is_of(pool_ids: Iterable[int]) -> sa.ColumnElement[bool]:
    """Whether the deployable runs the function of one of these pools, and matches it."""
    pool = orm.aliased(_POOL)
    of_one = (pool.id.in_(list(pool_ids)), capacity.runs(pool), capacity.matches(pool))
    return sa.exists().where(*of_one).correlate_except(pool)


def _failed(search: Search) -> sa.ColumnElement[bool]:
    """Whether the deployable could not be programmed so for the pool a short while ago."""
    image = search.pool.image_uuid
    return sa.exists().where(
        _OPERATION.pool_uuid == search.pool.uuid,
        _OPERATION.deployable_uuid == _DEPLOYABLE.uuid,
        _OPERATION.function_id == search.pool.function_id,
        _OPERATION.image_uuid.is_(None) if image is None else _OPERATION.image_uuid == image,
        _OPERATION.state == operations.FAILED,
        _OPERATION.ended_ms > db.now_ms() - search.retry_ms,
    )
