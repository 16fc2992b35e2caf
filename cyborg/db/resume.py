# SPDX-License-Identifier: Apache-2.0
"""Migrations on MariaDB and MySQL can be run again from any statement at which they were killed.

There, each change of a table commits at once, but the revision is recorded when all of its changes
are made. So what is there already is left alone. Importing the module is enough: alembic takes the
implementation of a dialect that was defined last.
"""

from __future__ import annotations

from typing import Any, cast

import sqlalchemy as sa
from alembic.ddl import mysql


class _Resumed(mysql.MySQLImpl):
    """Makes only those changes that an earlier attempt has not made."""

    __dialect__ = "mysql"

    def create_table(self, table: sa.Table, **kw: Any) -> None:
        if not self._inspect().has_table(table.name):
            super().create_table(table, **kw)
            return
        for index in table.indexes:
            self.create_index(index)

    def create_index(self, index: sa.Index, **kw: Any) -> None:
        known = self._inspect().get_indexes(cast(sa.Table, index.table).name)
        if index.name not in {found["name"] for found in known}:
            super().create_index(index, **kw)

    def add_column(self, table_name: str, column: sa.Column[Any], **kw: Any) -> None:
        if not self._has_column(table_name, column):
            super().add_column(table_name, column, **kw)

    def drop_column(self, table_name: str, column: sa.Column[Any], **kw: Any) -> None:
        if self._has_column(table_name, column):
            super().drop_column(table_name, column, **kw)

    def _has_column(self, table_name: str, column: sa.Column[Any]) -> bool:
        known = self._inspect().get_columns(table_name)
        return column.name in {found["name"] for found in known}

    def _inspect(self) -> sa.Inspector:
        # A new one each time: it remembers what it has seen.
        return sa.inspect(cast(sa.Connection, self.connection))


class _ResumedMariaDB(_Resumed):
    """The same for URLs that begin with ``mariadb``."""

    __dialect__ = "mariadb"
