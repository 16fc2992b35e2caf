# SPDX-License-Identifier: Apache-2.0
"""Column types that behave alike on SQLite, MySQL, MariaDB and PostgreSQL."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql


class JsonText(sa.types.TypeDecorator[Any]):
    """A JSON document stored as text, which every server returns unchanged, in its order."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name in {"mysql", "mariadb"}:
            return dialect.type_descriptor(mysql.MEDIUMTEXT(charset="utf8mb4"))
        return dialect.type_descriptor(sa.Text())

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        return None if value is None else json.loads(value)

    def compare_values(self, x: Any, y: Any) -> bool:
        """Whether they are stored alike: another order is a change."""
        # What is not loaded yet equals nothing, and is no JSON.
        return bool(x == y) and json.dumps(x) == json.dumps(y)


def string(length: int) -> sa.String:
    """A string column that compares byte by byte on MySQL too, whose default ignores case."""
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


#: MySQL rounds a plain DATETIME to whole seconds.
Timestamp = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
#: SQLite numbers rows by itself only in a column of type INTEGER, which has 64 bits there.
BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
LongText = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), "mysql", "mariadb")


class Sentence(sa.types.TypeDecorator[str]):
    """An error message from elsewhere, stored whatever characters it has.

    A driver may quote its firmware. PostgreSQL stores no NUL, and no server an unpaired surrogate.
    """

    impl = LongText
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None:
            return None
        return value.encode(errors="backslashreplace").decode().replace("\0", "\\x00")
