# SPDX-License-Identifier: Apache-2.0
"""An upgrade of the schema may be killed at any statement, and two may run at once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures

import pymysql
import pytest
import sqlalchemy as sa
from oslo_config import cfg
from oslo_utils import timeutils

from cyborg import db
from cyborg.db import models, revision, schema

#: How often an upgrade is killed; a long run has more.
KILLS = int(os.environ.get("CYBORG_TEST_KILLS", "6"))
#: Statements after which it is killed, at most.
FAR = 60
PATIENCE = 300
NEVER = 0
HOSTS = 5


@pytest.fixture
def engine(conf: cfg.ConfigOpts, database_url: str) -> Iterator[sa.Engine]:
    """An empty database."""
    conf.set_override("connection", database_url, group="database")
    db.configure(conf)
    yield db.engine()
    db.dispose()


def upgrade(url: str, last: int) -> int:
    """The exit status of an upgrade that dies at this statement."""
    command = [sys.executable, "-m", "cyborg.tests.killed_upgrade", url, str(last)]
    done = subprocess.run(
        command, timeout=PATIENCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    assert done.returncode in {0, -9}, done.stdout.decode()
    return done.returncode


def add_hosts() -> None:
    """Hosts in the schema of before."""
    before = sa.MetaData()
    before.reflect(db.engine(), only=["hosts"])
    now = timeutils.utcnow()
    host = {"report_started": 0, "report_counter": 0, "driver_errors": "{}", "last_seen": now}
    rows = [{"name": f"host-{number}", "node": "n", "created_at": now} for number in range(HOSTS)]
    with db.engine().begin() as connection:
        connection.execute(before.tables["hosts"].insert(), [row | host for row in rows])


def assert_complete() -> None:
    assert revision.version() == schema.head()
    with db.engine().connect() as connection:
        assert schema.differences(connection) == []


@pytest.mark.every_database
def test_it_is_killed_again_and_again(engine: sa.Engine, database_url: str) -> None:
    # Each run has other moments, which a failure names.
    seed = random.randrange(2**32)
    moments = random.Random(seed)
    schema.upgrade("a2")
    add_hosts()
    died = [upgrade(database_url, moments.randint(1, FAR)) for _ in range(KILLS)]
    assert -9 in died, seed
    assert upgrade(database_url, NEVER) == 0, seed
    assert_complete()
    with db.reader() as session:
        hosts = session.scalars(sa.select(models.Host)).all()
    assert len({host.uuid for host in hosts if host.uuid}) == HOSTS, seed


@pytest.mark.services
@pytest.mark.every_database
def test_an_empty_database_too(engine: sa.Engine, database_url: str) -> None:
    moments = random.Random(random.randrange(2**32))
    for _ in range(KILLS):
        upgrade(database_url, moments.randint(1, FAR))
    assert upgrade(database_url, NEVER) == 0
    assert_complete()


@pytest.mark.every_database
def test_those_who_come_at_once_wait_for_each_other(engine: sa.Engine, database_url: str) -> None:
    with futures.ThreadPoolExecutor() as pool:
        ended = [pool.submit(upgrade, database_url, NEVER) for _ in range(3)]
        assert [each.result() for each in ended] == [0, 0, 0]
    assert_complete()


@pytest.mark.services
@pytest.mark.parametrize("database_kind", ["mysql"], indirect=True)
def test_the_lock_is_kept_until_all_is_committed(engine: sa.Engine, database_url: str) -> None:
    lock = sa.select(sa.func.is_free_lock(sa.func.sha1(f"cyborg schema {engine.url.database}")))
    other = sa.create_engine(database_url)
    free: list[int | None] = []

    def look(_connection: sa.Connection) -> None:
        with other.connect() as connection:
            free.append(connection.scalar(lock))

    sa.event.listen(engine, "commit", look)
    schema.upgrade()
    sa.event.remove(engine, "commit", look)
    assert free
    assert not any(free)
    look(other.connect())
    assert free[-1] == 1
    other.dispose()


@pytest.mark.every_database
@pytest.mark.parametrize("last", [3, 40])
def test_a_race_with_a_service_is_run_again(engine: sa.Engine, last: int) -> None:
    seen = 0

    def lose(*_arguments: object) -> None:
        nonlocal seen
        seen += 1
        if seen == last:
            lost = pymysql.err.OperationalError(1020, "Record has changed since last read")
            raise sa.exc.OperationalError("UPDATE", {}, lost)

    sa.event.listen(engine, "before_cursor_execute", lose)
    schema.upgrade()
    sa.event.remove(engine, "before_cursor_execute", lose)
    assert seen > last
    assert_complete()
