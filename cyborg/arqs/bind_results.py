# SPDX-License-Identifier: Apache-2.0
"""How binds end: what others are told of it, and how long it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import orm

from cyborg import db, metrics, notifications
from cyborg.arqs import states
from cyborg.db import models
from cyborg.notifications import notices

_EVENTS = {states.BOUND: notices.ARQ_BOUND, states.BIND_FAILED: notices.ARQ_BIND_FAILED}


class End(NamedTuple):
    """The end of the bind of ``arq``, whose row still says what was before."""

    arq: models.Arq
    state: str
    reason: str | None = None
    handle: notices.Handle | None = None


def record(session: orm.Session, ends: Sequence[End], now_ms: int) -> None:
    """Announce and measure ``ends`` when the caller's transaction commits."""
    notifications.announce(
        session,
        (
            notices.of_arq(
                _EVENTS[end.state], end.arq, end.state, reason=end.reason, handle=end.handle
            )
            for end in ends
        ),
    )
    db.after_commit(session, lambda: _measure(ends, now_ms))


def _measure(ends: Sequence[End], now_ms: int) -> None:
    for end in ends:
        metrics.bind_ended(
            bound=end.state == states.BOUND,
            started_ms=end.arq.bind_started_ms,
            now_ms=now_ms,
        )
