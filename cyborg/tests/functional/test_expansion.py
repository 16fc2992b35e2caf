# SPDX-License-Identifier: Apache-2.0
"""No migration takes away what services of the release before read, or refuses what they write.

They run on the new schema until the last of them is upgraded. So what has a successor is dropped a
release later than that is added: expand, then contract.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import alembic.script
import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db
from cyborg.db import schema

#: The newest migration of the release before; ``test_release_before.py`` checks that. The first
#: commit after a release sets it.
BEFORE = "f1"


def tables(engine: sa.Engine) -> dict[str, sa.Table]:
    """The tables that there are."""
    there = sa.MetaData()
    there.reflect(engine)
    return dict(there.tables)


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


def test_migrations_only_add(conf: cfg.ConfigOpts, database_url: str) -> None:
    conf.set_override("connection", database_url, group="database")
    db.configure(conf)
    schema.upgrade(BEFORE)
    before = tables(db.engine())
    known = alembic.script.ScriptDirectory.from_config(schema._config())
    newer = [each.revision for each in known.walk_revisions(BEFORE, "head")][-2::-1]
    assert newer[-1] == schema.head()
    for revision in newer:
        schema.upgrade(revision)
        after = tables(db.engine())
        assert list(breaches(before, after)) == [], revision
        before = after
    db.dispose()


CHANGES = [
    ("ALTER TABLE hosts DROP COLUMN last", "hosts.last is gone"),
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
@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_what_takes_away_is_seen(database_url: str, change: str, said: str | None) -> None:
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE others (id INTEGER PRIMARY KEY)")
        connection.exec_driver_sql(
            "CREATE TABLE hosts (name VARCHAR(10) NOT NULL DEFAULT '', last BIGINT)"
        )
    before = tables(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql(change)
    found = list(breaches(before, tables(engine)))
    engine.dispose()
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
