# SPDX-License-Identifier: Apache-2.0
"""Galera says only at COMMIT that another node was faster: the transaction is then run again.

A single server never does that, so the connection to a real one says it, after a real rollback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import db, work
from cyborg.audits import consistency
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import release
from cyborg.hosts import flags
from cyborg.tests import boots, engine, hosts, servers

pytestmark = [
    pytest.mark.services,
    pytest.mark.parametrize(
        ("database_kind", "database_driver"), servers.DRIVERS[:2], indirect=True
    ),
]

Fail = Callable[[int], None]

#: The two ways in which a node says it.
WORDS = (
    "Deadlock found when trying to get lock; try restarting transaction",
    "WSREP detected deadlock/conflict and aborted the transaction. Try restarting the transaction",
)


class Commits:
    """Lets some commits of each connection fail; counts those that were tried."""

    def __init__(self, database: sa.Engine) -> None:
        self.tried = 0
        self._driver: Any = database.dialect.loaded_dbapi
        self.fails: Callable[[int], bool] = lambda number: False
        sa.event.listen(database, "checkout", self._take_over)

    def _take_over(self, connection: Any, record: Any, proxy: Any) -> None:
        if "commit" not in vars(connection):
            connection.commit = lambda: self._commit(connection)

    def _commit(self, connection: Any) -> None:
        self.tried += 1
        if self.fails(self.tried):
            connection.rollback()
            raise self._driver.OperationalError(1213, WORDS[self.tried % len(WORDS)])
        type(connection).commit(connection)


@pytest.fixture
def commits(database: sa.Engine) -> Commits:
    return Commits(database)


@db.retry
def want() -> None:
    with db.writer() as session:
        work.want(session, work.BIND, ["instance"])


def test_the_transaction_is_run_again(commits: Commits) -> None:
    commits.fails = lambda number: number <= 3
    want()
    assert commits.tried == 4
    with db.reader() as session:
        assert [row.wanted for row in session.scalars(sa.select(models.Work))] == [1]


def test_who_always_loses_is_told_to_come_back(commits: Commits) -> None:
    commits.fails = lambda number: True
    with pytest.raises(errors.ServiceUnavailable):
        want()
    assert commits.tried == db.MAX_RESTARTS


def test_a_life_in_which_every_other_commit_fails(
    commits, conf, ctx, sink, placement, root
) -> None:
    commits.fails = lambda number: number % 2 == 1
    card = hosts.device("a", hosts.deployable(boots.NAME, cleans=True))
    hosts.apply(card)
    placement.sync_once()
    arqs = boots.arqs(ctx, 2)
    instance = models.new_uuid()
    boots.bind(ctx, arqs, instance)
    engine.drain(conf)
    assert set(boots.states(ctx).values()) == {models.BOUND}
    assert sink.events == dict.fromkeys(arqs, "completed")
    with db.reader() as session:
        device = session.scalars(sa.select(models.Device.uuid)).one()
    flags.disable_device(device)
    placement.sync_once()
    assert placement.offered(boots.RP)["FPGA"] == (4, 4)
    release.delete_instance_arqs(ctx, instance)
    assert boots.states(ctx) == {}
    hosts.apply()
    assert consistency.violations() == []
    assert commits.tried > 20
