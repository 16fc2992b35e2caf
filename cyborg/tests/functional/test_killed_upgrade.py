# SPDX-License-Identifier: Apache-2.0
"""An upgrade of the schema may be killed at any statement, and two may run at once."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent import futures

import alembic.script
import pymysql
import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db
from cyborg.db import revision, schema
from cyborg.tests import rows_of_before, servers

#: How often an upgrade is killed; a long run has more.
KILLS = int(os.environ.get("CYBORG_TEST_KILLS", "30"))
#: Statements after which it is killed, at most.
FAR = 60
PATIENCE = 300
NEVER = 0


@pytest.fixture
def engine(conf: cfg.ConfigOpts, database_url: str) -> Iterator[sa.Engine]:
    """An empty database."""
    conf.set_override("connection", database_url, group="database")
    db.configure(conf)
    yield db.engine()
    db.dispose()


class Upgrades:
    """Upgrades of a database by processes that are killed."""

    def __init__(self, url: str, log: pathlib.Path) -> None:
        self._log = log
        command = [sys.executable, "-m", "cyborg.tests.killed_upgrade", url, str(log)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Upgrades:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.communicate(timeout=PATIENCE)

    def run(self, last: int) -> bool:
        """Run one that dies at this statement; whether it was done before."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(last, file=self._process.stdin, flush=True)
        status = int(self._process.stdout.readline())
        assert status in {0, -signal.SIGKILL}, self._log.read_text()
        return status == 0


@contextlib.contextmanager
def filled(kind: str, folder: pathlib.Path, start: str | None) -> Iterator[sa.Engine]:
    """A database with the schema of before, and with rows in all of its tables."""
    name = f"cyborg_{uuid.uuid4().hex[:12]}"
    on_file = contextlib.nullcontext(f"sqlite:///{folder / name}")
    with on_file if kind == "sqlite" else servers.new_database(kind, name) as url:
        conf = cfg.ConfigOpts()
        db.register(conf)
        conf.set_override("connection", url, group="database")
        db.configure(conf)
        if start is not None:
            schema.upgrade(start)
            rows_of_before.fill(db.engine())
        yield db.engine()
        db.dispose()


def starts() -> list[str | None]:
    """From where upgrades begin: nothing, the first schemas, the last releases', and the last."""
    known = alembic.script.ScriptDirectory.from_config(schema._config())
    _newest, before, *_ = known.walk_revisions()
    return [None, "a2", "f1", before.revision]


def assert_complete() -> None:
    assert revision.version() == schema.head()
    with db.engine().connect() as connection:
        assert schema.differences(connection) == []


@pytest.mark.every_database
def test_it_is_killed_again_and_again(database_kind: str, tmp_path: pathlib.Path) -> None:
    # Each run has other moments, which a failure names.
    seed = random.randrange(2**32)
    moments = random.Random(seed)
    log = tmp_path / "upgrades.log"
    undisturbed = {}
    for start in starts():
        with filled(database_kind, tmp_path, start) as engine:
            before = rows_of_before.read(engine)
            schema.upgrade()
            undisturbed[start] = rows_of_before.read(engine)
            assert rows_of_before.lost(before, undisturbed[start]) == set()
    died = 0
    for start in itertools.cycle(starts()):
        with filled(database_kind, tmp_path, start) as engine:
            url = engine.url.render_as_string(hide_password=False)
            with Upgrades(url, log) as upgrades:
                while not upgrades.run(moments.randint(1, FAR) if died < KILLS else NEVER):
                    died += 1
            assert_complete()
            assert rows_of_before.read(engine) == undisturbed[start], (start, seed)
        if died >= KILLS:
            return


@pytest.mark.every_database
def test_those_who_come_at_once_wait_for_each_other(
    engine: sa.Engine, database_url: str, tmp_path: pathlib.Path
) -> None:
    with contextlib.ExitStack() as stack, futures.ThreadPoolExecutor() as pool:
        logs = (tmp_path / f"{number}.log" for number in range(3))
        three = [stack.enter_context(Upgrades(database_url, log)) for log in logs]
        ended = [pool.submit(each.run, NEVER) for each in three]
        assert all(each.result() for each in ended)
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
