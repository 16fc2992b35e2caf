# SPDX-License-Identifier: Apache-2.0
"""The work table: what is to be done outside SQL, and which conductor is doing it.

Code that changes the database calls :func:`want` in the same transaction, so the intent commits
with the change. A conductor takes rows for the length of a lease, reads the
*current* state, acts, and removes the row unless it was wanted again in the meantime. A handler
may run more than once for one row, so it must be idempotent. All times are the database's clock.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import sqlalchemy as sa
from oslo_context import context as oslo_context
from sqlalchemy import orm

from cyborg import db
from cyborg.common import errors
from cyborg.db import models

BIND = "bind"
NOVA_EVENT = "nova-event"
PLACEMENT = "placement"
HOST_STEP = "host-step"
PROGRAM = "program"
FUNCTION_POOL = "function-pool"
INSTANCES = "instances"
ALLOCATIONS = "allocations"
ALLOCATE = "allocate"
LATE_CLAIM = "late-claim"

#: Why work is tried later: the root of a host's providers is not in Placement.
NO_ROOT = "no-root"
#: Likewise: it waits for what comes in a healthy cloud too.
NOT_YET = "not-yet"

#: Seconds of the first back-off and of the longest. Lease, poll interval and the first back-offs
#: together take less than a minute, so another conductor takes over a dead one's work within one.
FIRST_BACK_OFF = 0.1
LONGEST_BACK_OFF = 30.0

#: Due rows among which a conductor chooses at random, so that conductors rarely choose the same
#: one.
_CANDIDATES = 8


class _Waker:
    """What to call after each transaction of this process that wants work."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = _nothing


def _nothing() -> None:
    """Do nothing: conductors look by themselves every few seconds."""


_process = _Waker()


def wake_after_commit(wake: Callable[[], None]) -> None:
    """Call ``wake`` after each transaction of this process that wants work."""
    _process.wake = wake


class TryLater(errors.ServiceUnavailable):
    """Raised by a handler that cannot act yet; the message is stored as the row's last error.

    So is ``error_code``, where others decide by it.
    """

    def __init__(self, message: str, error_code: str | None = None) -> None:
        super().__init__(message)
        self.error_code = error_code


class NotYet(TryLater):
    """Raised by a handler that waits for what comes in a healthy cloud too, so nobody is warned."""

    level = logging.INFO

    def __init__(self, message: str) -> None:
        super().__init__(message, NOT_YET)


class LeaseLost(Exception):
    """Another conductor may own the row by now: stop without changing anything."""


@dataclass(kw_only=True)
class Item:
    """A row of work that this process owns until its lease ends."""

    id: int
    kind: str
    key: str
    wanted: int
    wanted_ms: int
    #: The database's clock when the row was taken.
    taken_ms: int
    attempts: int
    owner: str
    lease_seconds: float
    #: The API request that wanted it last; None if none did.
    request_id: str | None = None
    #: Whether the row was removed with what the work has changed.
    is_finished: bool = False
    _held_until: float = 0.0
    _lost: threading.Event = field(default_factory=threading.Event)

    def checkpoint(self) -> None:
        """Raise :class:`LeaseLost` unless the row is still ours. Handlers call it before acting."""
        if self._lost.is_set() or time.monotonic() > self._held_until:
            raise LeaseLost(f"{self.kind}/{self.key}")

    def extended(self, started: float) -> None:
        """Extend the lease, which a statement sent at monotonic time ``started`` has renewed."""
        self._held_until = started + self.lease_seconds

    def finished(self) -> None:
        """Note that the row is removed."""
        self.is_finished = True

    def lose(self) -> None:
        """Mark the item lost: another conductor may own the row."""
        self._lost.set()


def want(session: orm.Session, kind: str, keys: Iterable[str], *, after: int = 0) -> None:
    """Record in the caller's transaction that work of ``kind`` is to be done for ``keys``.

    It is done at once, or ``after`` so many seconds.

    The rows stay locked until the transaction ends; they are locked in the order of their keys,
    which avoids deadlocks. They keep the id of the API request that this thread serves, if any.
    """
    those = sorted(set(keys))
    if not those:
        return
    current = oslo_context.get_current()
    given: dict[str, Any] = {
        "the_kind": kind,
        "after_ms": after * 1000,
        "request": current.global_id if current else None,
        "made": models.utcnow(),
        **{f"key_{number}": key for number, key in enumerate(those)},
    }
    dialect = session.get_bind().dialect.name
    wish = _wish_for_one(dialect) if len(those) == 1 else _wish(dialect, len(those))
    session.execute(wish, given)
    db.after_commit(session, _process.wake)


def _wish(dialect: str, count: int) -> sa.Insert:
    """The statement that wants work for so many keys."""
    row = models.Work
    due = db.now_ms() + sa.bindparam("after_ms", type_=sa.BigInteger())
    request = sa.bindparam("request", type_=row.request_id.type)
    values = [
        {
            "kind": sa.bindparam("the_kind"),
            "key": sa.bindparam(f"key_{number}"),
            "wanted": 1,
            "wanted_ms": due,
            "due_ms": due,
            "attempts": 0,
            "request_id": request,
            "created_at": sa.bindparam("made"),
        }
        for number in range(count)
    ]
    again = {
        "wanted": row.wanted + 1,
        "wanted_ms": due,
        "due_ms": due,
        "request_id": sa.func.coalesce(request, row.request_id),
    }
    return db.upsert_of(dialect, row, values, key=["kind", "key"], update=again)


@functools.cache
def _wish_for_one(dialect: str) -> sa.Insert:
    """The same for one key, made once, since making it takes longer than running it."""
    return _wish(dialect, 1)


def last_error(keys: Mapping[str, str | None]) -> sa.ScalarSelect[str]:
    """Why work on any of these keys, by kind, failed last, for a column of another statement.

    Null if none is recorded, or none of it has failed.
    """
    row = models.Work
    these = [sa.and_(row.kind == kind, row.key == key) for kind, key in keys.items() if key]
    return sa.select(sa.func.max(row.last_error)).where(sa.or_(*these)).scalar_subquery()


@db.retry
def want_once(kind: str, key: str) -> None:
    """Record work in a transaction of its own, unless it is recorded already.

    A row that is backing off is left alone, so that it is not tried sooner.
    """
    with db.writer() as session:
        if session.scalar(_row_of(kind, key)) is None:
            want(session, kind, [key])


def take(
    owners: Iterator[str], lease_seconds: float, room: Mapping[str, int]
) -> tuple[list[Item], bool]:
    """Take due rows that have no owner, of each kind as many as there is ``room`` for.

    Of rows with the same key only the one whose kind comes first in ``room`` is taken: what it
    does may want the others again. Each item has one of ``owners``, which must be new: it tells a
    former owner from the present one.

    Returns the items, and whether there may be more rows to take now.
    """
    kinds = [kind for kind, number in room.items() if number > 0]
    candidates = _due(kinds) if kinds else []
    random.shuffle(candidates)
    first_of_key: dict[str, sa.Row[Any]] = {}
    for candidate in candidates:
        other = first_of_key.setdefault(candidate.key, candidate)
        first_of_key[candidate.key] = min(candidate, other, key=lambda row: kinds.index(row.kind))
    chosen: dict[int, str] = {}
    left = collections.Counter(room)
    for candidate in first_of_key.values():
        if left[candidate.kind] > 0 and (owner := next(owners, None)):
            left[candidate.kind] -= 1
            chosen[candidate.id] = owner
    started = time.monotonic()
    taken = _take(candidates, chosen, lease_seconds)
    items = [
        Item(
            id=candidate.id,
            kind=candidate.kind,
            key=candidate.key,
            wanted=candidate.wanted,
            wanted_ms=candidate.wanted_ms,
            taken_ms=candidate.taken_ms,
            attempts=candidate.attempts + 1,
            owner=chosen[candidate.id],
            lease_seconds=lease_seconds,
            request_id=candidate.request_id,
        )
        for candidate in candidates
        if candidate.id in taken
    ]
    for each in items:
        each.extended(started)
    return items, len(candidates) == _CANDIDATES or len(items) < len(candidates)


# The statements of :func:`take` are made once, since making them takes as long as running them, and
# of the table's columns, since the ORM has nothing to do for them.
_TABLE = cast(sa.Table, models.Work.__table__)
_ROW = _TABLE.c
_LEASE: sa.BindParameter[int] = sa.bindparam("lease", type_=sa.BigInteger())
_NOW_FREE = (
    _ROW.due_ms <= db.now_ms(),
    sa.or_(_ROW.owner.is_(None), _ROW.lease_ms < db.now_ms()),
)
_DUE = (
    sa.select(
        _ROW.id,
        _ROW.kind,
        _ROW.key,
        _ROW.wanted,
        _ROW.wanted_ms,
        _ROW.attempts,
        _ROW.request_id,
        db.now_ms().label("taken_ms"),
    )
    .where(_ROW.kind.in_(sa.bindparam("kinds", expanding=True)), *_NOW_FREE)
    .order_by(_ROW.due_ms)
    .limit(_CANDIDATES)
)
_OWNED = sa.select(_ROW.id).where(_ROW.owner.in_(sa.bindparam("owners", expanding=True)))


@db.retry
def _due(kinds: Collection[str]) -> list[sa.Row[Any]]:
    return db.rows(_DUE, {"kinds": list(kinds)})


def _take(
    candidates: Collection[sa.Row[Any]], owners: Mapping[int, str], lease_seconds: float
) -> set[int]:
    """Give the rows these owners; the ids of those that no other conductor has taken before."""
    chosen = [each for each in candidates if each.id in owners]
    if chosen and _own(chosen, owners, lease_seconds) == len(chosen):
        return set(owners)
    return _owned(owners.values()) if chosen else set()


@functools.cache
def _give(count: int) -> sa.Update:
    """Gives so many rows each an owner, of at most :data:`_CANDIDATES`."""
    numbers = range(count)
    ids: list[sa.BindParameter[int]] = [sa.bindparam(f"id_{n}") for n in numbers]
    # SQLite gives the id of a deleted row to the next one, which is other work.
    same = [
        sa.and_(
            _ROW.id == ids[n],
            _ROW.kind == sa.bindparam(f"kind_{n}"),
            _ROW.key == sa.bindparam(f"key_{n}"),
        )
        for n in numbers
    ]
    owners = [
        (_ROW.id == ids[n], sa.bindparam(f"owner_{n}", type_=_ROW.owner.type)) for n in numbers
    ]
    return (
        sa.update(_TABLE)
        .where(sa.or_(*same), *_NOW_FREE)
        .values(
            owner=sa.case(*owners), lease_ms=db.now_ms() + _LEASE, attempts=_ROW.attempts + 1
        )
    )


@db.retry
def _own(
    chosen: Sequence[sa.Row[Any]], owners: Mapping[int, str], lease_seconds: float
) -> int:
    given: dict[str, Any] = {"lease": round(lease_seconds * 1000)}
    for n, each in enumerate(chosen):
        its = {"id": each.id, "kind": each.kind, "key": each.key, "owner": owners[each.id]}
        given |= {f"{name}_{n}": value for name, value in its.items()}
    return db.write(_give(len(chosen)), given)


@db.retry
def _owned(owners: Collection[str]) -> set[int]:
    return {row.id for row in db.rows(_OWNED, {"owners": list(owners)})}


def hold(session: orm.Session, item: Item) -> None:
    """Lock the row, so that we own it until the caller's transaction ends.

    :raises LeaseLost: we do not own it any more
    """
    item.checkpoint()
    row = models.Work
    mine = sa.select(row.id).where(row.id == item.id, row.owner == item.owner)
    if session.scalar(mine.with_for_update()) is None:
        raise LeaseLost(f"{item.kind}/{item.key}")


@contextlib.contextmanager
def holding(item: Item) -> Iterator[orm.Session]:
    """A transaction in which we own the row.

    :raises LeaseLost: we do not own it any more
    """
    with db.writer() as session:
        hold(session, item)
        yield session


def finish_with(session: orm.Session, item: Item) -> None:
    """Remove the row in the caller's transaction, unless it was wanted again.

    For a handler that returns when that is committed: nobody waits for another transaction then.
    """
    given = {"the_id": item.id, "the_owner": item.owner, "seen": item.wanted}
    if db.matched(session, _REMOVE, given) > 0:
        db.after_commit(session, item.finished)


def finish(item: Item) -> bool:
    """Remove the row; if it was wanted again in the meantime, give it back to be taken at once.

    True if the row is gone or not ours any more, False if it waits to be taken again.
    """
    return item.is_finished or _remove(item) or not _wait_again(item)


_REMOVE = sa.delete(_TABLE).where(
    _ROW.id == sa.bindparam("the_id"),
    _ROW.owner == sa.bindparam("the_owner"),
    _ROW.wanted == sa.bindparam("seen"),
)


@db.retry
def _remove(item: Item) -> bool:
    given = {"the_id": item.id, "the_owner": item.owner, "seen": item.wanted}
    return db.write(_REMOVE, given) > 0


@db.retry
def _wait_again(item: Item) -> bool:
    row = models.Work
    mine = (row.id == item.id, row.owner == item.owner)
    with db.statement() as session:
        return db.update(session, row, *mine, **_UNOWNED, **_UNTRIED, attempts=0) > 0


_UNOWNED: dict[str, None] = {"owner": None, "lease_ms": None}
_UNTRIED: dict[str, None] = {"last_error": None, "error_code": None}


def back_off(item: Item, error: str, error_code: str | None = None) -> float:
    """Give the row back, to be tried later, or at once if it was wanted again in the meantime.

    Returns in how many seconds it is due, unless it was wanted again.
    """
    delay = _delay(item.attempts)
    why = {"last_error": error, "error_code": error_code}
    _give_back(item, why, round(delay * 1000))
    return delay


@db.retry
def _give_back(item: Item, why: Mapping[str, str | None], delay_ms: int) -> None:
    row = models.Work
    due = sa.case((row.wanted == item.wanted, db.now_ms() + delay_ms), else_=db.now_ms())
    mine = (row.id == item.id, row.owner == item.owner)
    with db.statement() as session:
        db.update(session, row, *mine, **_UNOWNED, **why, due_ms=due)


@db.retry
def hand_back(owners: Collection[str]) -> None:
    """Give rows back to be taken at once, because their owner stops."""
    row = models.Work
    with db.writer() as session:
        db.update(session, row, row.owner.in_(owners), **_UNOWNED, due_ms=db.now_ms())


@db.retry
def hand_back_of(worker: str) -> int:
    """Give back what a worker of that name has taken, which is dead; return how many rows."""
    row = models.Work
    owned = row.owner.startswith(f"{worker}#", autoescape=True)
    with db.writer() as session:
        return db.update(session, row, owned, **_UNOWNED, due_ms=db.now_ms())


@db.retry
def hand_back_all() -> None:
    """Give every row back; only for a process that knows that no other one is alive."""
    row = models.Work
    with db.writer() as session:
        db.update(session, row, row.owner.is_not(None), **_UNOWNED, due_ms=db.now_ms())


def take_back(session: orm.Session, kind: str, key: str) -> None:
    """Let work be taken anew at once: whoever carries it out loses its lease."""
    row = models.Work
    found = (row.kind == kind, row.key == key)
    db.update(session, row, *found, **_UNOWNED, **_UNTRIED, due_ms=db.now_ms())


def renew(items: Collection[Item], lease_seconds: float) -> None:
    """Extend the leases of ``items``; mark those lost whose rows are not ours any more."""
    if not items:
        return
    started = time.monotonic()
    kept = _renew([item.owner for item in items], lease_seconds)
    for item in items:
        if item.owner in kept:
            item.extended(started)
        else:
            item.lose()


@db.retry
def _renew(owners: list[str], lease_seconds: float) -> set[str]:
    row = models.Work
    held = row.owner.in_(owners)
    with db.writer() as session:
        db.update(session, row, held, lease_ms=db.now_ms() + round(lease_seconds * 1000))
        return {owner for owner in session.scalars(sa.select(row.owner).where(held)) if owner}


def is_wanted(kind: str, key: str) -> bool:
    """Whether there is such a row."""
    with db.reader() as session:
        return session.scalar(_row_of(kind, key)) is not None


def _row_of(kind: str, key: str) -> sa.Select[int]:
    return sa.select(models.Work.id).where(models.Work.kind == kind, models.Work.key == key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a row is."""

    id: int
    wanted: int
    #: Who carries it out, if anybody does.
    owner: str | None
    #: Whether no attempt has failed since it was wanted last.
    is_untried: bool


def progress(kind: str, key: str) -> Progress | None:
    """How far such a row is; None if there is none."""
    row = models.Work
    untried = sa.or_(row.owner.is_not(None), row.due_ms <= db.now_ms())
    query = sa.select(row.id, row.wanted, row.owner, untried)
    with db.reader() as session:
        found = session.execute(query.where(row.kind == kind, row.key == key)).one_or_none()
    if found is None:
        return None
    return Progress(id=found[0], wanted=found[1], owner=found[2], is_untried=bool(found[3]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A row that failed many times."""

    kind: str
    key: str
    attempts: int
    #: Seconds since it was wanted last.
    age: float
    last_error: str | None


@db.retry
def stuck(attempts: int, limit: int = 100) -> list[Stuck]:
    """At most ``limit`` rows tried more than ``attempts`` times, the most often tried first."""
    row = models.Work
    query = (
        sa.select(row.kind, row.key, row.attempts, row.last_error, db.now_ms() - row.wanted_ms)
        .where(row.attempts > attempts)
        .order_by(row.attempts.desc(), row.id)
        .limit(limit)
    )
    with db.reader() as session:
        return [
            Stuck(kind=kind, key=key, attempts=tried, last_error=error, age=age_ms / 1000)
            for kind, key, tried, error, age_ms in session.execute(query)
        ]


def _delay(attempts: int) -> float:
    """Seconds to wait after that many attempts, with jitter."""
    full = min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2.0 ** min(attempts - 1, 16))
    return full * random.uniform(0.5, 1.0)
