# SPDX-License-Identifier: Apache-2.0
"""The conductor's work done in the test's own thread, so that a test sees each step's end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, work
from cyborg.allocations import allocation_steps, placement_claims
from cyborg.arqs import binding, nova_events
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import host_steps

_numbers = itertools.count(1)
#: Seconds that no test takes, with many threads on a busy machine either.
_LEASE = 3600.0
#: What is changed for one thread's back-off is put back before another changes it.
_backing_off = threading.Lock()


def drain(conf: cfg.ConfigOpts) -> list[str]:
    """Do all work that is due but Placement's, and return what was done or tried, in order.

    What fails is not tried again before :func:`make_due`, however slow this machine is.
    """
    handlers = {
        work.BIND: binding.bind_instance,
        work.ALLOCATE: lambda item: allocation_steps.run(conf, item),
        work.LATE_CLAIM: lambda item: placement_claims.look_for_late(conf, item),
        work.NOVA_EVENT: lambda item: nova_events.send(conf, item),
        work.HOST_STEP: lambda item: host_steps.run(conf, item),
    }
    done: list[str] = []
    for item in _taken(dict.fromkeys(handlers, 100)):
        done.append(f"{item.kind}/{item.key}")
        try:
            handlers[item.kind](item)
        except errors.CyborgError as exc:
            with _backing_off, pytest.MonkeyPatch.context() as patient:
                patient.setattr(work, "FIRST_BACK_OFF", work.LONGEST_BACK_OFF)
                work.back_off(item, str(exc), getattr(exc, "error_code", None))
        else:
            work.finish(item)
    return done


def _taken(room: Mapping[str, int]) -> Iterator[work.Item]:
    """Claims of all that is due, also of what comes meanwhile."""
    while True:
        claims, _ = work.take((f"test#{number}" for number in _numbers), _LEASE, room)
        if not claims:
            return
        yield from claims


def take(owner: str, lease_seconds: float, kinds: Iterable[str]) -> work.Item | None:
    """Claim one due row of these kinds, if there is one."""
    claims, _ = work.take(iter([owner]), lease_seconds, dict.fromkeys(kinds, 1))
    return claims[0] if claims else None


@db.retry
def make_due() -> None:
    """Let all work that backs off be due now, also while conductors lock some of it."""
    with db.writer() as session:
        db.update(session, models.Work, due_ms=0)


def pending() -> dict[str, str | None]:
    """The work that is left, with its last error."""
    with db.reader() as session:
        rows = session.scalars(sa.select(models.Work).where(models.Work.kind != work.PLACEMENT))
        return {f"{row.kind}/{row.key}": row.last_error for row in rows}


def times_taken(name: str) -> int:
    """How often a lock was taken that Galera's other nodes see by what is written."""
    row = models.Brake
    with db.reader() as session:
        return session.scalar(sa.select(row.used).where(row.name == name)) or 0


def left() -> int:
    with db.reader() as session:
        return session.scalar(sa.select(sa.func.count()).select_from(models.Work)) or 0
