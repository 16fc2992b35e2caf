# SPDX-License-Identifier: Apache-2.0
"""An upgrade to a release that is not there yet, with revisions and messages that only tests have.

Services run on the new schema until the last of them is upgraded. So what has a successor is
dropped a release later than that is added: expand, then contract. An upgrade of the schema may be
killed at any statement, and two may run at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent import futures
from typing import Any

import alembic.script
import oslo_messaging as messaging
import pymysql
import pytest
import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy.dialects import mysql

from cyborg import db, rpc
from cyborg.cmd import upgrade_checks
from cyborg.db import models, revision, schema
from cyborg.handles import release
from cyborg.policy import context
from cyborg.rpc import client, faults, payloads, server, signers, signing
from cyborg.tests import boots, engine, full_payloads, hosts, messages, next_release, servers
from cyborg.tests.standalone_site import wait_for

pytestmark = pytest.mark.slow

#: What every database of a release has at least.
FIRST = "18.0.0"
#: How often an upgrade is killed; a long run has more.
KILLS = int(os.environ.get("CYBORG_TEST_KILLS", "30"))
#: Statements after which it is killed, at most, and which number it never reaches.
FAR, NEVER = 60, 0
PATIENCE = 300
#: Rows that each table is filled with.
ROWS = 4

Rows = dict[str, list[tuple[Any, ...]]]


@pytest.fixture
def next_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their revisions are known."""
    monkeypatch.setattr(schema, "FURTHER", [next_release.FOLDER])


@pytest.fixture
def empty(conf: cfg.ConfigOpts, database_url: str) -> Iterator[sa.Engine]:
    """A database without any table."""
    conf.set_override("connection", database_url, group="database")
    db.configure(conf)
    yield db.engine()
    db.dispose()


# What a migration may do.


def tables(found: sa.Engine) -> dict[str, sa.Table]:
    """The tables that there are, those that others refer to first."""
    there = sa.MetaData()
    there.reflect(found)
    return {table.name: table for table in there.sorted_tables}


def breaches(before: dict[str, sa.Table], after: dict[str, sa.Table]) -> Iterator[str]:
    """What older services miss, or cannot write any more."""
    for name, old in before.items():
        new = after.get(name)
        if new is None:
            yield f"table {name} is gone"
            continue
        yield from _of_columns(old, new)
        for columns in _unique(new) - _unique(old):
            # They leave a new column empty, and what is empty is not equal.
            if not any(c not in old.c and new.c[c].server_default is None for c in columns):
                yield f"{name}: {', '.join(sorted(columns))} must be unique"
        for column in old.c:
            if column.name in new.c and len(new.c[column.name].foreign_keys) > len(
                column.foreign_keys
            ):
                yield f"{name}.{column.name} must refer to another table"


def _of_columns(old: sa.Table, new: sa.Table) -> Iterator[str]:
    for column in new.c:
        if column.name not in old.c and not (column.nullable or column.server_default):
            yield f"{new.name}.{column.name} is new, and must be given"
    for column in old.c:
        now = new.c.get(column.name)
        if now is None:
            yield f"{old.name}.{column.name} is gone"
            continue
        if column.nullable and not now.nullable:
            yield f"{old.name}.{column.name} must not be null any more"
        if column.server_default is not None and now.server_default is None:
            yield f"{old.name}.{column.name} has no default any more"
        if not _is_as_wide(column.type, now.type):
            yield f"{old.name}.{column.name} was {column.type}, and is {now.type}"


def _is_as_wide(old: sa.types.TypeEngine[Any], new: sa.types.TypeEngine[Any]) -> bool:
    if isinstance(old, sa.String) and isinstance(new, sa.String):
        return new.length is None or (old.length is not None and old.length <= new.length)
    if isinstance(old, sa.Integer) and isinstance(new, sa.BigInteger):
        return True
    return type(old) is type(new)


def _unique(table: sa.Table) -> set[frozenset[str]]:
    named = [each.columns for each in table.constraints if isinstance(each, sa.UniqueConstraint)]
    of_indexes = [each.columns for each in table.indexes if each.unique]
    return {frozenset(column.name for column in each) for each in (*named, *of_indexes)}


@pytest.mark.usefixtures("next_releases")
def test_a_release_only_adds_and_the_one_after_it_takes_away(empty: sa.Engine) -> None:
    """Of this project's migrations too, when there are more than the first."""
    schema.upgrade(FIRST)
    known = alembic.script.ScriptDirectory.from_config(schema._config())
    newer = [each.revision for each in known.walk_revisions(FIRST, next_release.EXPAND)][-2::-1]
    before = tables(empty)
    for one in newer:
        schema.upgrade(one)
        after = tables(empty)
        assert list(breaches(before, after)) == [], one
        before = after
    schema.upgrade(next_release.CONTRACT)
    assert list(breaches(before, tables(empty))) == ["device_profiles.description is gone"]


CHANGES = [
    ("DROP TABLE hosts", "table hosts is gone"),
    ("ALTER TABLE hosts ADD COLUMN new INTEGER NOT NULL", "hosts.new is new, and must be given"),
    ("ALTER TABLE hosts ALTER COLUMN last SET NOT NULL", "hosts.last must not be null any more"),
    ("ALTER TABLE hosts ALTER COLUMN name DROP DEFAULT", "hosts.name has no default any more"),
    ("ALTER TABLE hosts ALTER COLUMN name TYPE VARCHAR(9)", "hosts.name was VARCHAR(10), and is"),
    ("ALTER TABLE hosts ALTER COLUMN last TYPE SMALLINT", "hosts.last was BIGINT, and is SMALLINT"),
    ("CREATE UNIQUE INDEX u ON hosts (last)", "hosts: last must be unique"),
    ("ALTER TABLE hosts ADD FOREIGN KEY (last) REFERENCES others", "must refer to another table"),
    ("ALTER TABLE hosts ADD COLUMN new INTEGER NOT NULL DEFAULT 0 UNIQUE", "new must be unique"),
    ("ALTER TABLE hosts ALTER COLUMN name TYPE TEXT", None),
    ("ALTER TABLE others ALTER COLUMN id TYPE BIGINT", None),
    ("ALTER TABLE hosts ADD COLUMN new INTEGER UNIQUE", None),
    ("ALTER TABLE hosts ADD COLUMN new INTEGER NOT NULL DEFAULT 0", None),
    ("ALTER TABLE hosts ALTER COLUMN name DROP NOT NULL", None),
]


@pytest.mark.services
@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_what_takes_away_is_seen(empty: sa.Engine) -> None:
    made = (
        "DROP TABLE IF EXISTS hosts, others",
        "CREATE TABLE others (id INTEGER PRIMARY KEY)",
        "CREATE TABLE hosts (name VARCHAR(10) NOT NULL DEFAULT '', last BIGINT)",
    )
    for change, said in CHANGES:
        with empty.begin() as connection:
            for statement in made:
                connection.exec_driver_sql(statement)
        before = tables(empty)
        with empty.begin() as connection:
            connection.exec_driver_sql(change)
        found = list(breaches(before, tables(empty)))
        assert len(found) == (said is not None), change
        assert said is None or said in found[0]


# Upgrades that are killed, that race, and beside which services work.


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

    def run(self, last: int, to: str = "head") -> bool:
        """Run one that dies at this statement; whether it was done before."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(last, to, file=self._process.stdin, flush=True)
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
            _fill(db.engine())
        yield db.engine()
        db.dispose()


def _fill(found: sa.Engine) -> None:
    """Put rows into every table; what refers to another table has a row of its own there."""
    with found.begin() as connection:
        for table in tables(found).values():
            if table.name != "alembic_version":
                rows = [{c.name: _value(c, each) for c in table.columns} for each in range(ROWS)]
                connection.execute(table.insert(), rows)


def _value(column: sa.Column[Any], number: int) -> object:
    if foreign := next(iter(column.foreign_keys), None):
        return None if foreign.column.table is column.table else number + 1
    # MariaDB's booleans are small numbers.
    if isinstance(column.type, mysql.TINYINT | sa.Boolean):
        return False
    kind = column.type.python_type
    if column.primary_key or kind is int:
        return number + 1
    if kind is datetime.datetime:
        return datetime.datetime.fromisoformat("2026-01-02T03:04:05.678901")
    return f"{number}-{column.table.name}-{column.name}"[: getattr(column.type, "length", None)]


def read(found: sa.Engine) -> Rows:
    """All rows by their tables, in an order of their own."""
    with found.connect() as connection:
        return {
            name: sorted((tuple(row) for row in connection.execute(sa.select(table))), key=repr)
            for name, table in tables(found).items()
        }


@pytest.mark.every_database
@pytest.mark.usefixtures("next_releases")
def test_it_is_killed_again_and_again(database_kind: str, tmp_path: pathlib.Path) -> None:
    # Each run has other moments, which a failure names.
    seed = random.randrange(2**32)
    moments = random.Random(seed)
    starts = (None, FIRST, next_release.EXPAND)
    undisturbed = {}
    for start in starts:
        with filled(database_kind, tmp_path, start) as found:
            schema.upgrade()
            undisturbed[start] = read(found)
    assert all(len(rows) == ROWS for rows in undisturbed[FIRST].values() if len(rows) != 1)
    assert undisturbed[FIRST]["device_profiles"][0][-1] == "0-device_profiles-description"
    died = 0
    for start in itertools.cycle(starts):
        with filled(database_kind, tmp_path, start) as found:
            url = found.url.render_as_string(hide_password=False)
            with Upgrades(url, tmp_path / "upgrades.log") as upgrades:
                while not upgrades.run(moments.randint(1, FAR) if died < KILLS else NEVER):
                    died += 1
            assert revision.version() == next_release.CONTRACT
            assert read(found) == undisturbed[start], (start, seed)
        if died >= KILLS:
            return


@pytest.mark.every_database
def test_those_who_come_at_once_wait_for_each_other(empty, database_url, tmp_path) -> None:
    with contextlib.ExitStack() as stack, futures.ThreadPoolExecutor() as pool:
        logs = (tmp_path / f"{number}.log" for number in range(3))
        three = [stack.enter_context(Upgrades(database_url, log)) for log in logs]
        ended = [pool.submit(each.run, NEVER, FIRST) for each in three]
        assert all(each.result() for each in ended)
    assert_complete(empty)


def assert_complete(found: sa.Engine) -> None:
    assert revision.version() == FIRST
    with found.connect() as connection:
        assert schema.differences(connection) == []


@pytest.mark.services
@pytest.mark.parametrize("database_kind", ["mysql"], indirect=True)
def test_the_lock_is_kept_until_all_is_committed(empty: sa.Engine, database_url: str) -> None:
    lock = sa.select(sa.func.is_free_lock(sa.func.sha1(f"cyborg schema {empty.url.database}")))
    other = sa.create_engine(database_url)
    free: list[int | None] = []

    def look(_connection: sa.Connection) -> None:
        with other.connect() as connection:
            free.append(connection.scalar(lock))

    sa.event.listen(empty, "commit", look)
    schema.upgrade()
    sa.event.remove(empty, "commit", look)
    assert free
    assert not any(free)
    look(other.connect())
    assert free[-1] == 1
    other.dispose()


@pytest.mark.every_database
@pytest.mark.parametrize("last", [3, 40])
def test_a_race_with_a_service_is_run_again(empty: sa.Engine, last: int) -> None:
    seen = 0

    def lose(*_arguments: object) -> None:
        nonlocal seen
        seen += 1
        if seen == last:
            lost = pymysql.err.OperationalError(1020, "Record has changed since last read")
            raise sa.exc.OperationalError("UPDATE", {}, lost)

    sa.event.listen(empty, "before_cursor_execute", lose)
    schema.upgrade(FIRST)
    sa.event.remove(empty, "before_cursor_execute", lose)
    assert seen > last
    assert_complete(empty)


class Boots:
    """Boots and deletes instances all the time, by the code of this release."""

    def __init__(self, conf: cfg.ConfigOpts, ctx: context.RequestContext) -> None:
        self._conf, self._ctx = conf, ctx
        self._end = threading.Event()
        self._pool = futures.ThreadPoolExecutor(1)
        self.ended = 0

    def __enter__(self) -> Boots:
        self._running = self._pool.submit(self._run)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end.set()
        self._pool.shutdown()
        self._running.result()

    def go_on(self) -> None:
        """Return when one more has ended that began after now."""
        wanted = self.ended + 2
        wait_for("boots", lambda: self._running.done() or self.ended >= wanted)
        assert not self._running.done()

    def _run(self) -> None:
        while not self._end.is_set():
            instance = models.new_uuid()
            arqs = boots.arqs(self._ctx)
            boots.bind(self._ctx, arqs, instance)
            engine.drain(self._conf)
            assert boots.states(self._ctx) == {arqs[0]: models.BOUND}
            release.delete_instance_arqs(self._ctx, instance)
            engine.drain(self._conf)
            self.ended += 1


@pytest.mark.every_database
@pytest.mark.usefixtures("database")
def test_this_release_serves_while_the_schema_becomes_the_next_ones(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, database_url: str, tmp_path: pathlib.Path
) -> None:
    hosts.apply(hosts.card("a"))
    with (
        Upgrades(database_url, tmp_path / "upgrades.log") as upgrades,
        Boots(conf, ctx) as going,
    ):
        going.go_on()
        last = 1
        while not upgrades.run(last, next_release.EXPAND):
            going.go_on()
            last += 1
        assert last > 5
        going.go_on()
    assert revision.version() == next_release.EXPAND
    # It starts on that, too.
    revision.check()
    with db.reader() as session:
        notes = session.scalars(sa.select(sa.text("note")).select_from(sa.text("device_profiles")))
        assert None in notes.all()


# Messages between this release and the next one.

#: What the next release speaks.
NEXT = "2.1"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NextStep(rpc.HostStep):
    """A step that says one thing more."""

    colour: str = "red"


class Agent:
    """Keeps the steps it is asked for, as its release reads them."""

    def __init__(self, kind: type[rpc.HostStep]) -> None:
        self._kind = kind
        self.steps: list[rpc.HostStep] = []

    def host_step(self, _context: object, step: Mapping[str, Any], _wait: float) -> None:
        self.steps.append(self._kind.from_wire(step))


class NextMethods(server.AgentMethods):
    """It can be asked for more."""

    target = messaging.Target(version=NEXT)

    def polish(self, context: dict[str, Any], step: Any, wait: float) -> dict[str, Any]:
        """Only the next release has it."""
        return self.host_step(context, step, wait)


class NextClient(client.RpcClient):
    """It asks for more."""

    def polish(self, host: str) -> None:
        asked = self._agent.prepare(topic=client.agent_topic(host), version=NEXT, timeout=30)
        said = signing.Said(host, "polish", {"step": NEXT_STEP.to_wire(), "wait": 1})
        self._call(asked, f"the agent of host {host}", signers.CONDUCTOR, said)


STEP = full_payloads.step()
NEXT_STEP = NextStep(**{each.name: getattr(STEP, each.name) for each in dataclasses.fields(STEP)})


@pytest.fixture
def agents(conf: cfg.ConfigOpts) -> Iterator[dict[str, Agent]]:
    """An agent of this release, on host ``old``, and one of the next, on host ``new``."""
    found = {"old": Agent(rpc.HostStep), "new": Agent(NextStep)}
    kinds = {"old": server.AgentMethods, "new": NextMethods}
    with messages.transport(conf, "memory"):
        running = [
            rpc._server(conf, client.agent_topic(host), "_", kinds[host](agent, host))  # type: ignore[arg-type]
            for host, agent in found.items()
        ]
        for each in running:
            each.start()
        assert all(each._started.wait(30) for each in running)
        yield found
        for each in running:
            each.stop()


def test_each_release_reads_the_messages_of_the_other(conf, agents) -> None:
    """What it does not know is ignored, and what it is not told has a default."""
    for host in agents:
        for step in (STEP, dataclasses.replace(NEXT_STEP, colour="blue")):
            rpc.run_host_step(conf, host, step, 1)
    assert agents["old"].steps == [STEP, STEP]
    assert agents["new"].steps == [NEXT_STEP, dataclasses.replace(NEXT_STEP, colour="blue")]


@pytest.mark.parametrize("pin", [None, NEXT, rpc.VERSION])
def test_what_only_the_next_release_can_do_is_refused_by_this_one(conf, agents, pin) -> None:
    url = messaging.TransportURL.parse(conf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cyborg.rpc.version.VERSION", NEXT)
        conf.set_override("agent", pin, group="upgrade_levels")
        asks = NextClient(url, conf, replies_of=None)
    with pytest.raises(faults.TooOld, match="of a release that cannot do this"):
        asks.polish("old")
    if pin == rpc.VERSION:
        # It is not even asked for.
        with pytest.raises(faults.TooOld):
            asks.polish("new")
    else:
        asks.polish("new")
    assert (agents["old"].steps, len(agents["new"].steps)) == ([], int(pin != rpc.VERSION))
    asks.close()


def test_what_is_not_sent_for_its_version_has_written_nothing(conf: cfg.ConfigOpts) -> None:
    with messages.transport(conf, "memory"):
        conf.set_override("agent", "1.9", group="upgrade_levels")
        with pytest.raises(rpc.ProgramFailed, match=r"1\.9") as caught:
            rpc.run_program(conf, "old", full_payloads.program_step(), 1)
    assert not caught.value.written


def test_pins_are_to_be_removed_when_all_are_upgraded(conf, monkeypatch) -> None:
    conf.set_override("conductor", rpc.VERSION, group="upgrade_levels")
    checks = upgrade_checks.Checks(conf)
    assert checks.rpc_pins().code == upgrade_checks.SUCCESS
    monkeypatch.setattr(rpc, "VERSION", NEXT)
    found = checks.rpc_pins()
    assert found.code == upgrade_checks.WARNING
    assert "[upgrade_levels] conductor = 2.0" in str(found.details)


def test_a_report_is_read_again_by_a_release_that_derives_more_from_it(monkeypatch) -> None:
    before = full_payloads.report().digest()
    monkeypatch.setattr(payloads, "_DERIVED", payloads._DERIVED + 1)
    assert full_payloads.report().digest() != before
