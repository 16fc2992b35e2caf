# SPDX-License-Identifier: Apache-2.0
"""The migrations build what the models say, on every supported server."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db
from cyborg.db import revision, schema


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


def test_every_connection_to_sqlite_is_safe(database: sa.Engine) -> None:
    with database.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 30_000}


def test_a_writer_on_sqlite_locks_before_it_reads(database: sa.Engine) -> None:
    begun: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
        begun.append(statement)

    sa.event.listen(database, "before_cursor_execute", note)
    with db.writer() as session:
        session.execute(sa.text("SELECT 1"))
    with db.reader() as session:
        session.execute(sa.text("SELECT 2"))
    assert begun == ["BEGIN IMMEDIATE", "SELECT 1", "BEGIN", "SELECT 2"]
