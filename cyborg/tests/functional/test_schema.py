# SPDX-License-Identifier: Apache-2.0
"""The migrations build what the models say, on every supported server."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg
from oslo_utils import timeutils

from cyborg import db
from cyborg.db import models, revision, schema
from cyborg.programming import operations


@pytest.mark.every_database
def test_migrations_build_the_models(conf: cfg.ConfigOpts, database_url: str) -> None:
    conf.set_override("connection", database_url, group="database")
    db.configure(conf)
    assert revision.version() is None
    schema.upgrade()
    schema.upgrade()
    assert revision.version() == schema.head()
    with db.engine().connect() as connection:
        assert schema.differences(connection) == []
    db.dispose()


@pytest.mark.every_database
def test_hosts_and_requests_of_before_have_their_signs_of_life(
    conf: cfg.ConfigOpts, database_url: str
) -> None:
    conf.set_override("connection", database_url, group="database")
    db.configure(conf)
    schema.upgrade("a2")
    now = timeutils.utcnow()
    before = sa.MetaData()
    before.reflect(db.engine(), only=["hosts", "arqs"])
    host = {"report_started": 0, "report_counter": 0, "driver_errors": "{}", "last_seen": now}
    arq = {
        "state": models.BIND_STARTED,
        "device_profile_name": "p",
        "device_profile_group_id": 0,
        "device_profile_group": "{}",
        "created_at": now,
    }
    with db.engine().begin() as connection:
        for name in ("host-1", "host-2"):
            values = {"name": name, "node": name, "created_at": now, **host}
            connection.execute(before.tables["hosts"].insert().values(values))
        for number, instance in enumerate([None, models.new_uuid()]):
            values = {"uuid": f"arq-{number}", "instance_uuid": instance, **arq}
            connection.execute(before.tables["arqs"].insert().values(values))

    schema.upgrade()

    with db.reader() as session:
        hosts = session.execute(sa.select(models.Host, db.now_ms())).all()
        asked = session.scalars(sa.select(models.Arq.instance_asked_ms).order_by(models.Arq.uuid))
        assert list(asked) == [None, 0]
    assert len({found.uuid for found, _now_ms in hosts if found.uuid}) == 2
    assert all(0 <= now_ms - found.last_seen_ms < 600_000 for found, now_ms in hosts)
    db.dispose()


#: Program mode, function, in doubt, contradicted, and who asks, state and fault of the operation;
#: then the state that they mean, and what the hardware has shown.
PROGRAMS = [
    (None, None, False, False, None, "unmanaged", None),
    (None, "aes", False, False, None, "unmanaged", None),
    ("dynamic", None, False, False, ("user 1", "queued", None), "blank", None),
    ("dynamic", "aes", False, True, None, "loaded", None),
    ("dynamic", "aes", True, False, ("user 1", "reserving", None), "withdrawn", "AES"),
    ("dynamic", "aes", True, True, ("user 1", "reserving", None), "withdrawn", ""),
    ("dynamic", None, True, False, ("user 1", "writing", None), "writing", ""),
    ("dynamic", "aes", True, True, ("user 1", "queued", None), "lost", None),
    ("dynamic", "aes", True, True, None, "lost", None),
    ("dynamic", "aes", True, False, ("recovery", "queued", None), "lost", "AES"),
    ("dynamic", "aes", True, True, ("recovery", "writing", None), "restoring", None),
    ("dynamic", "aes", True, True, ("recovery", "reserving", "failed"), "damaged", None),
]


@pytest.mark.every_database
def test_programs_of_before_have_their_states(conf: cfg.ConfigOpts, database_url: str) -> None:
    conf.set_override("connection", database_url, group="database")
    db.configure(conf)
    schema.upgrade("e1")
    before = sa.MetaData()
    before.reflect(db.engine(), only=["hosts", "devices", "deployables", "operations"])
    tables = before.tables
    made: dict[str, Any] = {"created_at": timeutils.utcnow()}
    with db.engine().begin() as connection:
        host = made | {"id": 1, "name": "h", "node": "h", "driver_errors": "{}"}
        host |= {"report_started": 0, "report_counter": 0}
        connection.execute(tables["hosts"].insert().values(host))
        device = made | {"id": 1, "uuid": "d", "host_id": 1, "driver": "d", "missing": False}
        device |= {"type": "FPGA", "vendor": "v", "model": "m", "status": "enabled"}
        connection.execute(tables["devices"].insert().values(device))
        for number, (mode, function, in_doubt, contradicted, asked, *_) in enumerate(PROGRAMS):
            name = f"deployable-{number:02}"
            row = made | {"uuid": name, "device_id": 1, "name": name, "rp_uuid": name}
            row |= {"num_accelerators": 1, "driver_name": "d", "prepares": False, "cleans": False}
            row |= {"missing": False, "in_doubt": in_doubt, "contradicted": contradicted}
            row |= {"program_mode": mode, "function_id": function}
            row |= {"function_plain": function.upper() if function else None}
            connection.execute(tables["deployables"].insert().values(row))
            if asked is not None:
                operation = made | {"uuid": name, "deployable_uuid": name, "active": name}
                operation |= dict(zip(("asked_by", "state", "fault"), asked, strict=True))
                operation |= {"asked_ms": 0, "history": "[]"}
                connection.execute(tables["operations"].insert().values(operation))

    schema.upgrade()

    with db.reader() as session:
        found = session.scalars(sa.select(models.Deployable).order_by(models.Deployable.name)).all()
    assert [(each.program_state, each.function_shown) for each in found] == [
        (state, shown) for *_, state, shown in PROGRAMS
    ]
    # The code takes the same from the columns of before.
    for each in found:
        with db.writer() as session:
            locked = operations.lock(session, each.uuid)
            assert locked is not None
            assert locked.program_state == each.program_state
    db.dispose()


def test_every_connection_to_sqlite_is_safe(database: sa.Engine) -> None:
    with database.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 30_000}


def test_a_writer_on_sqlite_locks_before_it_reads(
    database: sa.Engine, conf: cfg.ConfigOpts
) -> None:
    begun: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
        begun.append(statement)

    sa.event.listen(database, "before_cursor_execute", note)
    with db.writer() as session:
        session.execute(sa.text("SELECT 1"))
    with db.reader() as session:
        session.execute(sa.text("SELECT 2"))
    assert begun == ["BEGIN IMMEDIATE", "SELECT 1", "BEGIN", "SELECT 2"]
