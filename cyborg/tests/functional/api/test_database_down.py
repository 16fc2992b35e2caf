# SPDX-License-Identifier: Apache-2.0
"""Every route of the API while the database cannot be reached or is locked, and after that."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

import alembic.command
import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg

from cyborg import db, profiles
from cyborg.api.controllers import root
from cyborg.common import errors
from cyborg.db import connections, models, revision, schema
from cyborg.tests import asks, hosts, messages, servers
from cyborg.tests.boots import RP
from cyborg.tests.mounted_api import Api

on_servers = pytest.mark.parametrize(
    "database_kind",
    [pytest.param(kind, marks=pytest.mark.services) for kind in servers.DATABASES],
    indirect=True,
)
on_drivers = pytest.mark.parametrize(
    ("database_kind", "database_driver"),
    [pytest.param(*each, marks=pytest.mark.services) for each in servers.DRIVERS],
    indirect=True,
)

#: What stands in requests for a name that is not any uuid.
NAMES = {
    "host": "host-1",
    "drained_host": "host-1",
    "rp": RP,
    "deployable_id": "1",
    "new_key": "MCowBQYDK2VwAyEA5W8QCPAeRtmxXpwGLB1BADETzkVhoE9uK2PXxco5+JY=",
}
#: Clients in the field send an ARQ's uuid behind the collection too; policies do not tell of it.
BY_OLD_CLIENTS = asks.old(f"PATCH {asks.ARQS}/{{arq}}", {"{arq}": asks.BIND}, vouched=True)
#: A sound request of every operation that needs the database.
REQUESTS = {
    re.sub(r"\{\w+\}", "{}", ask.line.partition("?")[0]): ask
    for ask in (*reversed(asks.REQUESTS.values()), BY_OLD_CLIENTS)
}

UNREACHABLE = "The database cannot be reached at present; try again later."

Call = Callable[..., webob.Response]


class _SilentWire(messages.Wire):
    """A relay that keeps connections open, and lets nothing through while it is ``silent``."""

    silent = False

    def passes(self, data: bytes) -> bytes:
        return b"" if self.silent else data


@pytest.fixture
def wire(conf: cfg.ConfigOpts, database: sa.Engine, database_url: str) -> Iterator[_SilentWire]:
    """What this process reaches its database over."""
    hosts.apply(hosts.card("a"))
    line = _SilentWire(database_url)
    line.join()
    connect(conf, line.url)
    yield line
    line.cut()
    connect(conf, database_url)


def connect(conf: cfg.ConfigOpts, url: str | sa.URL) -> None:
    """Let this process reach its database by this URL."""
    text = sa.make_url(url).render_as_string(hide_password=False)
    conf.set_override("connection", text, group="database")
    db.configure(conf)


@pytest.fixture
def call(conf: cfg.ConfigOpts, database: sa.Engine) -> Iterator[Call]:
    conf.set_override("auth_strategy", "noauth", group="api")
    conf.set_override("bind_wait", 0, group="api")
    api = Api(conf)

    def calling(route: str, who: Mapping[str, str] = {}) -> webob.Response:
        names = collections.defaultdict(models.new_uuid, NAMES)
        ask = REQUESTS[route]
        method, path = asks.filled(ask.line, names).split(" ")
        body = asks.filled(ask.body, names)
        return api.ask(method, f"/v2{path}", body, version=ask.microversion, **who)

    with messages.transport(conf, "memory"):
        yield calling


#: What Nova asks for while it builds, moves or deletes a server, and who asks.
NOVA = (
    f"GET {asks.PROFILES}",
    f"POST {asks.ARQS}",
    f"PATCH {asks.ARQS}",
    f"GET {asks.ARQS}",
    f"DELETE {asks.ARQS}",
)
#: Without a service token.
AS_USER = {"X-Roles": "admin,member,reader", "X-Project-Id": "p"}


def assert_served(call: Call, route: str) -> None:
    """The request was understood, and answered from the database."""
    answer = call(route)
    assert answer.status_int < 500 or answer.status_int == 501, (route, answer.text)
    assert answer.status_int != 400 or "there is no such" in answer.text, (route, answer.text)


def assert_refused(call: Call, route: str, *sentences: str) -> None:
    answer = call(route)
    assert answer.status_int == 503, (route, answer.status, answer.text)
    assert int(answer.headers["Retry-After"]) > 0
    if "errors" in answer.json:
        told = answer.json["errors"][0]["detail"]
    else:
        told = json.loads(answer.json["error_message"])["faultstring"]
    assert told in sentences, route


def test_the_table_names_every_route() -> None:
    routes = {
        re.sub(r"\{\w+\}", "{}", f"{method} {path.removeprefix('/v2')}")
        for method, path, handler in root.declared()
        if handler.operation.rule is not None
    }
    assert routes == set(REQUESTS)


@on_servers
def test_every_route_says_when_to_come_back_and_recovers(call: Call, wire: messages.Wire) -> None:
    for route in REQUESTS:
        assert_served(call, route)
    wire.cut()
    for route in REQUESTS:
        assert_refused(call, route, UNREACHABLE)
    wire.join()
    for route in REQUESTS:
        assert_served(call, route)


# libpq sees a dead host only, and PyMySQL's time limit costs too much of each boot.
@pytest.mark.services
@pytest.mark.parametrize(
    ("database_kind", "database_driver"),
    [each for each in servers.DRIVERS if each[1] == "mysqldb"],
    indirect=True,
)
def test_a_database_that_falls_silent_holds_no_request(call, wire, monkeypatch) -> None:
    monkeypatch.setattr(connections, "SILENT_SECONDS", 1)
    db.dispose()
    assert_served(call, NOVA[0])
    wire.silent = True
    assert_refused(call, NOVA[0], UNREACHABLE)
    wire.silent = False
    assert_served(call, NOVA[0])


@on_servers
@pytest.mark.parametrize("route", NOVA)
def test_nova_waits_for_a_database_that_comes_back(call, conf, wire, route) -> None:
    """Without retries in nova.conf a 503 costs the boot. A user is told at once."""
    call(route)
    wire.cut()
    begun = time.monotonic()
    assert_refused(call, route, UNREACHABLE)
    took = time.monotonic() - begun
    conf.set_override("bind_wait", 30, group="api")
    begun = time.monotonic()
    assert call(NOVA[0], AS_USER).status_int == 503
    assert time.monotonic() - begun < took + 15
    with futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(call, route)
        with pytest.raises(futures.TimeoutError):
            answer.result(timeout=took + 1)
        wire.join()
        assert answer.result(timeout=60).status_int < 500, answer.result().text


def test_what_may_be_committed_already_is_not_done_twice(call, conf, monkeypatch) -> None:
    conf.set_override("bind_wait", 5, group="api")
    hosts.apply(hosts.card("a"))
    profiles.create_profile(name="public", groups=[{"resources:FPGA": "1"}], description=None)
    commit, lost = sa.orm.Session.commit, [True, True]

    def commit_without_answer(session: sa.orm.Session) -> None:
        commit(session)
        if lost:
            lost.pop()
            raise sa.exc.OperationalError(None, None, Exception("server has gone away"))

    monkeypatch.setattr(sa.orm.Session, "commit", commit_without_answer)
    for _ in range(2):
        assert call(f"POST {asks.ARQS}").status_int == 503
    assert lost == []
    assert len(call(f"GET {asks.ARQS}").json["arqs"]) == 2


@on_servers
def test_nova_waits_for_no_longer_than_bind_wait_and_takes_few_threads(call, conf, wire) -> None:
    conf.set_override("bind_wait", 3, group="api")
    call(NOVA[0])
    wire.cut()
    begun = time.monotonic()
    with futures.ThreadPoolExecutor(2 * conf.api.threads) as pool:
        asked = [pool.submit(call, NOVA[0]) for _ in range(2 * conf.api.threads)]
        took = [(each.result(), time.monotonic() - begun) for each in futures.as_completed(asked)]
    assert {answer.status_int for answer, _ in took} == {503}
    assert took[-1][1] < 20
    # Those that find no place are told at once.
    assert sum(seconds < took[-1][1] - 1 for _, seconds in took) >= conf.api.threads // 2


#: Parts of a URL that let a connection wait for no lock, or hardly for any; let its queries take
#: hardly any time; and let it change nothing.
IMPATIENT = {
    "mysql": {"init_command": "SET lock_wait_timeout = 0, innodb_lock_wait_timeout = 0"},
    "postgresql": {"options": "-c lock_timeout=1"},
}
HURRIED = {
    "mysql": {"init_command": "SET max_statement_time = 0.05"},
    "postgresql": {"options": "-c statement_timeout=50"},
}
READ_ONLY = {
    "mysql": {"init_command": "SET SESSION TRANSACTION READ ONLY"},
    "postgresql": {"options": "-c default_transaction_read_only=on"},
}
#: How a connection gets all tables for itself, and gives them back. A server that only notices that
#: the connection was closed does that a moment later.
LOCK = {
    "mysql": ("LOCK TABLES {}", "{} WRITE", "UNLOCK TABLES"),
    "postgresql": ("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", "{}", "ROLLBACK"),
}
#: What a request is told that only reads, and one that changes something.
SAID_OF_LOCKS = (
    "The database is busy with the same objects for others; try again later.",
    "The request kept losing races; try it again.",
)


@contextlib.contextmanager
def locked(url: sa.URL, kind: str) -> Iterator[None]:
    """Another connection has all tables for itself, as while an upgrade alters them."""
    statement, each, unlock = LOCK[kind]
    names = ", ".join(each.format(name) for name in models.Base.metadata.tables)
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        connection.exec_driver_sql(statement.format(names))
        try:
            yield
        finally:
            connection.exec_driver_sql(unlock)


@on_drivers
def test_a_wait_for_a_lock_that_is_too_long_is_said(
    call, conf, database, database_kind, monkeypatch
) -> None:
    hosts.apply(hosts.card("a"))
    connect(conf, database.url.update_query_dict(IMPATIENT[database_kind]))
    # A change is tried as often.
    monkeypatch.setattr(db, "MAX_RESTARTS", 2)
    with locked(database.url, database_kind):
        for route in REQUESTS:
            assert_refused(call, route, *SAID_OF_LOCKS)
    for route in REQUESTS:
        assert_served(call, route)


@on_servers
def test_who_waits_for_a_lock_is_answered_in_time(
    call, conf, database, database_kind, monkeypatch
) -> None:
    """By themselves InnoDB waits for 50 seconds each time, and PostgreSQL for ever."""
    monkeypatch.setattr(connections, "LOCK_WAIT_SECONDS", 1)
    monkeypatch.setattr(db, "MAX_RETRY_SECONDS", 1.0)
    connect(conf, database.url)
    began = time.monotonic()
    with locked(database.url, database_kind):
        assert_refused(call, "GET /devices", *SAID_OF_LOCKS)
        assert_refused(call, f"POST {asks.PROFILES}", *SAID_OF_LOCKS)
    assert time.monotonic() - began < 40
    assert_served(call, f"POST {asks.PROFILES}")


@on_servers
def test_an_upgrade_waits_for_as_long_as_it_takes(
    conf: cfg.ConfigOpts, database: sa.Engine, database_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LOCK_WAIT_SECONDS", 1)
    connect(conf, database.url)

    def migrate(_config: object, _revision: str) -> None:
        connection = _config.attributes["connection"]  # type: ignore[attr-defined]
        connection.exec_driver_sql("ALTER TABLE project_locks ADD COLUMN more INTEGER")

    monkeypatch.setattr(alembic.command, "upgrade", migrate)
    with futures.ThreadPoolExecutor(1) as pool:
        with locked(database.url, database_kind):
            upgrade = pool.submit(schema.upgrade)
            with pytest.raises(futures.TimeoutError):
                upgrade.result(timeout=3)
        upgrade.result(timeout=60)
    assert "more" in {each["name"] for each in sa.inspect(db.engine()).get_columns("project_locks")}


@on_drivers
def test_what_a_server_does_not_do_is_said(call, conf, database, database_kind) -> None:
    def queried(options: Any) -> None:
        connect(conf, database.url.update_query_dict(options[database_kind]))

    queried(HURRIED)
    with locked(database.url, database_kind):
        for route in ("GET /devices", f"POST {asks.PROFILES}"):
            sentence = "The database has ended a query that took too long; try again later."
            assert_refused(call, route, sentence)
    queried(READ_ONLY)
    assert_served(call, "GET /devices")
    sentence = "The database takes no changes at present; try again later."
    assert_refused(call, f"POST {asks.PROFILES}", sentence)
    for name, value in {"max_pool_size": 1, "max_overflow": 0, "pool_timeout": 1}.items():
        conf.set_override(name, value, group="database")
    connect(conf, database.url)
    with db.reader() as session:
        session.execute(sa.select(1))
        sentence = "All connections to the database are in use; try again later."
        assert_refused(call, "GET /devices", sentence)
    assert_served(call, "GET /devices")


#: What SQLAlchemy asks a server of a kind that it has not met before, by a part of the question.
FIRST_QUESTIONS = {"mysql": b"lower_case_table_names", "postgresql": b"pg_catalog.version()"}


class CutAtQuestion(messages.Wire):
    """A line that breaks when a client asks the server this, for so many times."""

    def __init__(self, server_url: str, question: bytes, times: int) -> None:
        super().__init__(server_url)
        self.question = question
        self.times = times

    def passes(self, data: bytes) -> bytes:
        """What goes through."""
        if self.times and self.question in data:
            self.times -= 1
            raise OSError("broken")
        return data


@on_drivers
def test_a_server_that_goes_while_a_service_starts(
    conf: cfg.ConfigOpts, database: sa.Engine, database_url: str, database_kind: str
) -> None:
    line = CutAtQuestion(database_url, FIRST_QUESTIONS[database_kind], 2)
    line.join()
    connect(conf, line.url)
    try:
        revision.check_if_reachable()
        assert line.times == 1
        with pytest.raises(errors.ServiceUnavailable), db.reader() as session:
            session.scalar(sa.select(1))
        assert line.times == 0
        revision.check()
    finally:
        line.cut()
        connect(conf, database_url)


@on_drivers
def test_a_connection_that_died_while_idle_costs_no_request(call, wire) -> None:
    for route in REQUESTS:
        assert_served(call, route)
        # What a restart of the server does to the connections of the pool.
        wire.cut()
        wire.join()
        assert_served(call, route)


@on_drivers
def test_a_connection_that_dies_at_any_statement_is_no_fault_of_ours(call, wire) -> None:
    cuts = 0
    for route in REQUESTS:
        for number in range(1, 100):
            with cutting(wire, number) as reached:
                answer = call(route)
            wire.join()
            if not reached:
                break
            cuts += 1
            assert answer.status_int == 503, (route, number, answer.text)
        assert_served(call, route)
    assert cuts > len(REQUESTS)


@contextlib.contextmanager
def cutting(wire: messages.Wire, number: int) -> Iterator[list[bool]]:
    """Cut the wire before the statement of that number, or the commit; the list says whether."""
    reached: list[bool] = []
    left = [number]

    def count(*_arguments: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            reached.append(True)
            wire.cut()

    listened = list(itertools.product(db.engines(), ("before_cursor_execute", "commit")))
    for engine, event in listened:
        sa.event.listen(engine, event, count)
    try:
        yield reached
    finally:
        for engine, event in listened:
            sa.event.remove(engine, event, count)
        if not reached:
            wire.cut()


@pytest.mark.usefixtures("database")
@pytest.mark.every_database
def test_an_error_of_the_program_is_not_said_to_be_the_databases() -> None:
    def fail(begin: Callable[[], Any], error: Exception) -> None:
        with begin() as session:
            session.execute(sa.select(1))
            raise error

    begins = (db.reader, db.snapshot, db.writer, db.statement)
    for begin, kind in itertools.product(begins, db.LOST_AT_FIRST):
        error = kind("wrong")
        with pytest.raises(kind) as raised:
            fail(begin, error)
        assert raised.value is error, begin
