# SPDX-License-Identifier: Apache-2.0
"""What a transaction costs on a server, and that cheap ones hold what dear ones held."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest
import sqlalchemy as sa

from cyborg import db, profiles, work
from cyborg.arqs import binding, service
from cyborg.db import models, round_trips
from cyborg.handles import release
from cyborg.inventory import report
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import boots, engine, hosts, prepared_databases, servers

pytestmark = pytest.mark.services

_NAMES = ("database_kind", "database_driver")
on_drivers = pytest.mark.parametrize(_NAMES, servers.DRIVERS, indirect=True)
on_mysql = pytest.mark.parametrize(_NAMES, servers.DRIVERS[:2], indirect=True)
#: What it sends is seen in Python.
on_pymysql = pytest.mark.parametrize(_NAMES, servers.DRIVERS[:1], indirect=True)

#: Of one session, by the name that MariaDB gives them.
COUNTERS = ("Questions", "Com_commit", "Com_rollback", "Com_admin_commands")


def counters() -> dict[str, int]:
    """What the server has counted of the one connection that writers have."""
    with db.writer() as session:
        rows = session.execute(sa.text("SHOW SESSION STATUS"))
        return {name: int(value) for name, value in rows if name in COUNTERS}


@db.retry
def write(key: str) -> None:
    with db.writer() as session:
        work.want(session, work.BIND, [key])


@db.retry
def read() -> int:
    with db.reader() as session:
        return session.scalar(sa.select(sa.func.count()).select_from(models.Work)) or 0


@on_mysql
def test_a_writer_takes_its_statements_and_one_commit(database: sa.Engine) -> None:
    write("one")
    before = counters()
    write("two")
    after = counters()
    # The query and a COMMIT are those of the looks at the counters.
    assert {name: after[name] - before[name] for name in COUNTERS} == {
        "Questions": 4,
        "Com_commit": 2,
        "Com_rollback": 0,
        "Com_admin_commands": 0,
    }


@on_mysql
def test_a_connection_that_rested_is_pinged(database, monkeypatch) -> None:
    monkeypatch.setattr(round_trips, "FRESH", 0.0)
    before = counters()
    write("one")
    assert counters()["Com_admin_commands"] - before["Com_admin_commands"] == 2


@on_mysql
def test_the_connection_that_was_used_last_is_used_next(database: sa.Engine) -> None:
    def connection() -> int | None:
        with db.writer() as session:
            return session.scalar(sa.text("SELECT CONNECTION_ID()"))

    with db.writer() as session:
        session.execute(sa.text("SELECT 1"))
        # Beside the other one, so that there are two.
        last = connection()
    used = {connection() for _ in range(4)}
    assert len(used) == 1
    assert last not in used


def close_all(database: sa.Engine) -> None:
    """Let the server close every connection of the pool to this database."""
    killer = sa.create_engine(database.url, isolation_level="AUTOCOMMIT")
    with killer.connect() as connection:
        assert prepared_databases.close_others(connection)
    killer.dispose()


@on_drivers
@pytest.mark.parametrize("fresh", [0.0, 3600.0])
def test_a_connection_that_the_server_closed_is_replaced(database, monkeypatch, fresh) -> None:
    monkeypatch.setattr(round_trips, "FRESH", fresh)
    write("one")
    close_all(database)
    write("two")
    close_all(database)
    assert read() == 2


def write_and_fail(key: str) -> None:
    with db.writer() as session:
        work.want(session, work.BIND, [key])
        raise RuntimeError


@on_drivers
def test_no_lock_and_no_change_outlives_its_transaction(database: sa.Engine) -> None:
    write("one")
    with db.reader() as session:
        session.execute(sa.select(models.Work).with_for_update())
    with pytest.raises(RuntimeError):
        write_and_fail("two")
    other = sa.create_engine(database.url)
    with other.connect() as connection:
        rows = connection.execute(sa.select(models.Work.key).with_for_update(nowait=True))
        assert list(rows.scalars()) == ["one"]
    other.dispose()


def noted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is sent to the server from now on, a command for each round trip."""
    commands: list[object] = []
    connections: Any = pymysql.connections.Connection
    send = connections._execute_command

    def note(connection: object, command: int, argument: object) -> None:
        commands.append(argument or command)
        send(connection, command, argument)

    # The connections are open by now, and count as fresh on however slow a machine.
    monkeypatch.setattr(round_trips, "FRESH", 3600.0)
    monkeypatch.setattr(connections, "_execute_command", note)
    return commands


@on_pymysql
def test_an_unchanged_report_takes_one_round_trip(database, monkeypatch) -> None:
    first, again = (hosts.report(hosts.card("a"), order=(1, number)) for number in (1, 2))
    report.apply_report(first)
    commands = noted(monkeypatch)
    assert report.note_unchanged(again.unchanged())
    assert len(commands) == 1, commands


@on_pymysql
@pytest.mark.parametrize(("count", "budget"), [(1, 26), (4, 32)])
def test_the_budget_of_a_boot_in_round_trips(
    ctx, conf, sink, database, monkeypatch, count, budget
) -> None:
    """All that API and conductor send for accelerators, from their request to their deletion.

    Each is one of a device of its own, as Nova mostly asks for several.
    """
    letters = "abcd"[:count]
    hosts.apply(*[hosts.card(letter) for letter in letters])
    groups = [boots.GROUP] * count
    profiles.create_profile(name="some", groups=groups, description=None, uuid=None)
    engine.drain(conf)
    commands = noted(monkeypatch)

    instance = models.new_uuid()
    arqs = [arq.uuid for arq in service.create(ctx, "some", most=1000)]
    places = [provider_uuid(f"host-1_{letter}") for letter in letters]
    targets = {
        arq: boots.target(instance, device_rp_uuid=place)
        for arq, place in zip(arqs, places, strict=True)
    }
    binding.request_changes(ctx, targets, [])
    engine.drain(conf)
    bound = service.list_arqs(ctx, instance_uuid=instance)
    release.delete_instance_arqs(ctx, instance)
    engine.drain(conf)

    assert [arq.state for arq in bound] == [models.BOUND] * count
    assert sink.events == dict.fromkeys(arqs, "completed")
    # One of them takes the lock under which a project's unbound ARQs are counted. Each device more
    # costs two: the look for a free handle of it, and the UPDATE of its ARQ.
    assert len(commands) <= budget, commands
