# SPDX-License-Identifier: Apache-2.0
"""A bind, and an administrator who takes its accelerator out of service: one sees the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.arqs import bind_writes
from cyborg.common import errors
from cyborg.db import models, providers
from cyborg.hosts import draining, flags
from cyborg.tests import boots, hosts
from cyborg.tests.named_devices import only_device

pytestmark = [
    pytest.mark.services,
    pytest.mark.parametrize("database_kind", ["mysql", "postgresql"], indirect=True),
]

PATIENCE = 60.0
#: Seconds in which whoever does not wait is done.
SOON = 1.0


def _drain() -> None:
    # Nobody is counted who may still come.
    assert draining.drain("host-1", None, 10).in_use == len(_asked())


def _taint_host() -> None:
    draining.taint("host-1", None, 10)


def _disable() -> None:
    flags.disable_device(only_device())


def _taint() -> None:
    flags.taint_device(only_device())


acts = pytest.mark.parametrize("act", [_drain, _taint_host, _disable, _taint])
Act = Callable[[], None]


def _asked() -> list[str]:
    """The states of the ARQs whose bind was accepted."""
    query = sa.select(models.Arq.state).where(models.Arq.state.in_(models.ASKED))
    with db.reader() as session:
        return list(session.scalars(query))


class _Beside(threading.Thread):
    """Acts in a thread, and keeps what it sees then."""

    def __init__(self, act: Act) -> None:
        super().__init__(daemon=True)
        self.act = act
        self.seen: list[str] | None = None

    def run(self) -> None:
        self.act()
        self.seen = _asked()


@acts
def test_who_comes_second_waits_for_the_bind(database, ctx, monkeypatch, act: Act) -> None:
    hosts.apply(hosts.card("a"))
    arqs = boots.arqs(ctx)
    beside = _Beside(act)
    write = bind_writes.write

    def write_beside(session: orm.Session, steps: Sequence[bind_writes.Step]) -> None:
        if steps:
            beside.start()
            beside.join(SOON)
        write(session, steps)

    monkeypatch.setattr(bind_writes, "write", write_beside)
    boots.bind(ctx, arqs, models.new_uuid())
    beside.join(PATIENCE)
    assert beside.seen == [models.BOUND]


@acts
def test_a_bind_that_comes_second_is_refused(database, ctx, monkeypatch, act: Act) -> None:
    hosts.apply(hosts.card("a"))
    arqs = boots.arqs(ctx)
    beside = _Beside(act)
    read = providers.read

    def read_before(*arguments: Any) -> Any:
        found = read(*arguments)
        if beside.ident is None:
            beside.start()
            beside.join(PATIENCE)
        return found

    monkeypatch.setattr(providers, "read", read_before)
    with pytest.raises(errors.Conflict, match=r"drained|tainted|disabled"):
        boots.bind(ctx, arqs, models.new_uuid())
    assert (beside.seen, _asked()) == ([], [])
