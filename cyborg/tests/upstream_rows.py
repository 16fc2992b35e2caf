# SPDX-License-Identifier: Apache-2.0
"""The database of the released upstream, as its agents, conductor and API have left it."""

from __future__ import annotations

import datetime
import json
import pathlib
from typing import Any

import sqlalchemy as sa

DATA = pathlib.Path(__file__).with_name("data") / "upstream"
ROWS: dict[str, list[dict[str, Any]]] = json.loads((DATA / "rows-17.json").read_text())
HEADS = {"17": "b47c8f2d1e3a", "15": "6c77bd6afea5"}
ARQS = "extended_accelerator_requests"


def make_tables(engine: sa.Engine, release: str) -> None:
    """Make the tables of a release on MariaDB, the only database that upstream's schema has."""
    text = (DATA / f"schema-{release}.sql").read_text()
    with engine.begin() as connection:
        for statement in filter(str.strip, text.split(";\n")):
            connection.execute(sa.text(statement))


def fill(engine: sa.Engine, release: str) -> None:
    """Put upstream's rows into its tables, as that release has these."""
    tables = sa.MetaData()
    tables.reflect(engine)
    with engine.begin() as connection:
        revision = tables.tables["alembic_version"].insert()
        connection.execute(revision, [{"version_num": HEADS[release]}])
        for name, rows in ROWS.items():
            insert(connection, tables.tables[name], rows)


def insert(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    """Add rows to a table, without what it has no column for."""
    columns = table.columns.keys()
    values = [{key: _typed(key, row[key]) for key in columns} for row in rows]
    connection.execute(table.insert(), values)


def _typed(key: str, value: Any) -> Any:
    is_time = key.endswith("_at") and value is not None
    return datetime.datetime.fromisoformat(value) if is_time else value
