# SPDX-License-Identifier: Apache-2.0
"""Rows in every table of whatever schema a database has, for the migrations that follow it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

#: Rows of a table, each a tuple.
Rows = list[tuple[Any, ...]]

#: Rows of each table.
ROWS = 4

MADE = datetime.datetime.fromisoformat("2026-01-02T03:04:05.678901")

#: Alembic's.
_VERSIONS = "alembic_version"

#: What migrations look for. Each takes the next of its values.
_WORDS: Mapping[tuple[str, str], tuple[Any, ...]] = {
    ("arqs", "state"): ("Bound", "Bound", "BindStarted", "Initial"),
    ("arqs", "device_profile_name"): ("profile-0", "profile-1", "profile-0", "none"),
    ("arqs", "device_profile_group"): ('{"resources:FPGA": "1"}', '{"resources:PGPU": "1"}'),
    ("device_profiles", "name"): ("profile-0", "profile-1", "profile-2", "profile-3"),
    ("attributes", "key"): ("rc",),
    ("attributes", "value"): ("FPGA", "PGPU"),
    ("deployables", "uuid"): ("part-0", "part-1", "part-2", "part-3"),
    ("deployables", "program_mode"): ("dynamic", "dynamic", "dynamic", None),
    ("deployables", "function_id"): ("aes-0", None, "aes-2", None),
    ("deployables", "in_doubt"): (True, True, False, False),
    ("operations", "active"): ("part-0", "part-1", "part-2", "part-3"),
    ("operations", "asked_by"): ("recovery", "user 1"),
    ("operations", "state"): ("writing", "reserving", "queued", "done"),
    ("hosts", "driver_errors"): ("{}",),
}

#: What a migration makes up, takes from the clock or counts: it is not the same twice.
MADE_UP = {
    ("history", "id"),
    ("hosts", "uuid"),
    ("hosts", "last_seen_ms"),
    ("history", "uuid"),
    ("history", "created_at"),
    ("history", "started_ms"),
}


def tables(engine: sa.Engine) -> list[sa.Table]:
    """The tables that the database has, those that others refer to first."""
    there = sa.MetaData()
    there.reflect(engine)
    return [table for table in there.sorted_tables if table.name != _VERSIONS]


def fill(engine: sa.Engine) -> None:
    """Put rows into every table; what refers to another table has a row of its own there."""
    with engine.begin() as connection:
        for table in tables(engine):
            rows = [{c.name: _value(c, number) for c in table.columns} for number in range(ROWS)]
            connection.execute(table.insert(), rows)


def _value(column: sa.Column[Any], number: int) -> object:
    words = _WORDS.get((column.table.name, column.name))
    if words is not None:
        return words[number % len(words)]
    if foreign := next(iter(column.foreign_keys), None):
        return None if foreign.column.table is column.table else number + 1
    # MariaDB's booleans are small numbers.
    is_boolean = isinstance(column.type, mysql.TINYINT | sa.Boolean)
    kind = column.type.python_type
    if is_boolean:
        return False
    if column.primary_key or kind is int:
        return number + 1
    if kind is datetime.datetime:
        return MADE
    return f"{number}-{column.table.name}-{column.name}"[: getattr(column.type, "length", None)]


def read(engine: sa.Engine) -> dict[str, Rows]:
    """All rows by their tables, in an order of their own; what is made up is only there or not."""
    with engine.connect() as connection:
        return {
            table.name: sorted(
                (_seen(table, row) for row in connection.execute(sa.select(table)).mappings()),
                key=repr,
            )
            for table in tables(engine)
        }


def _seen(table: sa.Table, row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(
        row[c.name] is not None if (table.name, c.name) in MADE_UP else row[c.name]
        for c in table.columns
    )


def lost(before: Mapping[str, Rows], after: Mapping[str, Rows]) -> set[str]:
    """The tables that are gone, or have fewer rows than before."""
    return {name for name, rows in before.items() if len(after.get(name, ())) < len(rows)}
