# SPDX-License-Identifier: Apache-2.0
"""The states of an accelerator request: the table of permitted changes, and the changes.

Every change of state is an UPDATE whose WHERE clause holds :func:`predecessors` of the new state,
and whose row count is checked: of two processes that want the change only one can win.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, metrics, notifications, work
from cyborg.common.reasons import Reason
from cyborg.db import models
from cyborg.db.models import BIND_FAILED, BIND_STARTED, BOUND, DELETING, INITIAL, UNBOUND
from cyborg.notifications import notices

LOG = logging.getLogger(__name__)

#: State to the states that may follow it; from each the ARQ may be deleted.
TRANSITIONS: dict[str, frozenset[str]] = {
    INITIAL: frozenset({BIND_STARTED, UNBOUND}),
    BIND_STARTED: frozenset({BOUND, BIND_FAILED, UNBOUND}),
    BOUND: frozenset({UNBOUND}),
    BIND_FAILED: frozenset({UNBOUND}),
    UNBOUND: frozenset({BIND_STARTED, UNBOUND}),
}

ALL = frozenset(TRANSITIONS)

#: And what is shown of a deleted one whose handle is not clean yet.
SHOWN = ALL | {DELETING}

#: What Nova takes as decided.
RESOLVED = frozenset({BOUND, BIND_FAILED})

_EVENTS = {BOUND: notices.ARQ_BOUND, BIND_FAILED: notices.ARQ_BIND_FAILED}


def predecessors(state: str) -> frozenset[str]:
    """The states from which ``state`` may be entered."""
    return frozenset(old for old, new in TRANSITIONS.items() if state in new)


def enter(session: orm.Session, state: str, *where: sa.ColumnElement[bool], **values: Any) -> int:
    """Bring ARQs that meet ``where`` into ``state`` if the table permits it; return how many.

    ``values`` are other columns to set.
    """
    permitted = models.Arq.state.in_(predecessors(state))
    return db.update(session, models.Arq, permitted, *where, state=state, **values)


class BindEnd(NamedTuple):
    """The end of the bind of ``arq``, whose row is as it was loaded before.

    A bind with a ``reason`` has failed.
    """

    arq: models.Arq
    reason: Reason | None = None
    handle: notices.Handle | None = None

    @property
    def state(self) -> str:
        """The state that the ARQ enters."""
        return BOUND if self.reason is None else BIND_FAILED


_CLOCK = sa.select(db.now_ms())


def end_binds(
    session: orm.Session,
    ends: Sequence[BindEnd],
    now_ms: int | None = None,
    *,
    tell_consumer: bool = True,
    **values: Any,
) -> bool:
    """Make the ARQs whose bind failed BindFailed; announce and measure all; tell the consumers.

    The caller has made those without a reason Bound, with their handles. ``now_ms`` is the
    database's clock, if the caller has read it. ``tell_consumer`` is False if the caller does
    that. ``values`` are other columns of the failed ARQs.

    False if one of the failed ARQs is not BindStarted any more: the caller must roll back then,
    unless it was the only one.
    """
    failed: dict[Reason, list[models.Arq]] = {}
    for end in ends:
        if end.reason is not None:
            failed.setdefault(end.reason, []).append(end.arq)
    for reason, arqs in failed.items():
        ids = [arq.id for arq in arqs]
        values |= reason.columns()
        # It may have been unbound meanwhile, and be BindStarted again with another handle.
        held = sa.func.coalesce(models.Arq.attach_handle_id, 0)
        same = (models.Arq.id.in_(ids), held.in_([arq.attach_handle_id or 0 for arq in arqs]))
        if enter(session, BIND_FAILED, *same, **values) < len(ids):
            return False
        # %r: a driver's words may hold what no log file can.
        uuids = ", ".join(arq.uuid for arq in arqs)
        LOG.warning("ARQs %s are BindFailed: %r", uuids, reason.whole)
    clock = session.execute(_CLOCK).scalar_one() if now_ms is None else now_ms
    notifications.announce(
        session,
        (
            notices.of_arq(
                _EVENTS[end.state],
                end.arq,
                end.state,
                reason=end.reason,
                handle=end.handle,
                at_ms=clock,
            )
            for end in ends
        ),
    )
    db.after_commit(session, lambda: _measure(ends, clock))
    if tell_consumer:
        want_telling(session, [end.arq for end in ends])
    return True


def want_telling(session: orm.Session, arqs: Iterable[models.Arq]) -> None:
    """Have the consumers of ARQs told how these are now: Nova by an event.

    Of the ARQs of an allocation Nova knows nothing: the state of the allocation follows them.
    """
    instances, allocations = set(), set()
    for arq in arqs:
        if arq.allocation_uuid:
            allocations.add(arq.allocation_uuid)
        elif arq.consumer_uuid:
            instances.add(arq.consumer_uuid)
    work.want(session, work.NOVA_EVENT, instances)
    work.want(session, work.ALLOCATE, allocations)


def _measure(ends: Sequence[BindEnd], now_ms: float) -> None:
    for end in ends:
        metrics.bind_ended(
            bound=end.reason is None, started_ms=end.arq.bind_started_ms, now_ms=now_ms
        )


def note(session: orm.Session, *where: sa.ColumnElement[bool], **values: Any) -> int:
    """Record of ARQs that meet ``where`` what the API does not show; return of how many."""
    return db.update(session, models.Arq, *where, updated_at=models.Arq.updated_at, **values)


def keep_key(session: orm.Session, key: str, *where: sa.ColumnElement[bool]) -> None:
    """Keep the secret of the handle of the Bound ARQ that meets ``where``, if that is another."""
    other = sa.func.coalesce(models.Arq.access_key, "") != key
    db.update(session, models.Arq, models.Arq.state == BOUND, *where, other, access_key=key)


_ARQ = cast(sa.Table, models.Arq.__table__)
#: Made once, since making it takes longer than running it.
_DELETE = sa.delete(_ARQ).where(_ARQ.c.id.in_(sa.bindparam("ids", expanding=True)))


def delete(session: orm.Session, arqs: Iterable[models.Arq]) -> None:
    """Delete locked ARQs: a caller has seen to what they leave."""
    db.matched(session, _DELETE, {"ids": [arq.id for arq in arqs]})


def restart_clocks(session: orm.Session, *where: sa.ColumnElement[bool]) -> None:
    """Start the deadline of the BindStarted ARQs that meet ``where`` again.

    Time during which the broker is down does not count against the host.
    """
    undecided = models.Arq.state == BIND_STARTED
    db.update(session, models.Arq, undecided, *where, bind_started_ms=db.now_ms())
