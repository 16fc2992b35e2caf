# SPDX-License-Identifier: Apache-2.0
"""Databases with the newest schema, copied from one that the migrations have made.

The migrations themselves take most of a second on MariaDB, more than many a test.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import shutil
import time
import uuid
from collections.abc import Hashable, Iterator
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import util

from cyborg import db
from cyborg.db import schema
from cyborg.tests import servers

_REVISION = "alembic_version"
_SAID = f"SELECT version_num FROM {_REVISION}"


class Templates:
    """What is copied: it is made once a process, when the first test asks for it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._sqlite = folder / "template.sqlite"
        self._postgresql: str | None = None
        #: Databases on MariaDB that are as the migrations have made them, and how that is.
        self._spare: list[str] = []
        self._made = ""
        self._on_servers = contextlib.ExitStack()

    def close(self) -> None:
        """Drop what is on a server."""
        self._on_servers.close()

    def fill(self, url: str, conf: cfg.ConfigOpts) -> None:
        """Give an empty database the newest schema, and have the process configured for it."""
        kind = sa.make_url(url).get_backend_name()
        if kind == "sqlite":
            self._copy_file(url, conf)
        elif kind == "postgresql":
            self._copy_on_server(url, conf)
        _configure(conf, url)
        # Of the pool's first connection more is asked than of the others.
        with db.engine().connect():
            pass

    @contextlib.contextmanager
    def on_mysql(self, conf: cfg.ConfigOpts) -> Iterator[str]:
        """The URL of a database on MariaDB that has the newest schema.

        MariaDB takes long to make and to drop tables: the next test has the same ones, emptied.
        """
        if not self._spare:
            name = f"cyborg_{uuid.uuid4().hex[:12]}"
            url = self._on_servers.enter_context(servers.new_database("mysql", name))
            _upgrade(conf, url)
            self._spare.append(url)
            with _connected(url) as connection:
                self._made = self._made or _shape(connection)
        url = self._spare.pop()
        yield url
        with _connected(url) as connection:
            _cut_off_others(connection)
            _empty(connection)
            if _shape(connection) == self._made:
                self._spare.append(url)

    def _copy_file(self, url: str, conf: cfg.ConfigOpts) -> None:
        if not self._sqlite.exists():
            _upgrade(conf, f"sqlite:///{self._sqlite}")
        shutil.copyfile(self._sqlite, str(sa.make_url(url).database))

    def _copy_on_server(self, url: str, conf: cfg.ConfigOpts) -> None:
        if self._postgresql is None:
            name = f"cyborg_{uuid.uuid4().hex[:12]}"
            made = self._on_servers.enter_context(servers.new_database("postgresql", name))
            _upgrade(conf, made)
            self._postgresql = name
        copy = sa.make_url(url).database
        with _connected(servers.url_of("postgresql")) as connection:
            connection.exec_driver_sql(f"DROP DATABASE {copy}")
            connection.exec_driver_sql(f"CREATE DATABASE {copy} TEMPLATE {self._postgresql}")


class _Compiled(util.LRUCache[Any, Any]):
    """The statements of this process, compiled once for all its databases of a kind.

    SQLAlchemy's own cache is an engine's, and each test has an engine: to compile the statements
    anew would take a third of the time of the tests.
    """

    def get(self, key: tuple[sa.Dialect, *tuple[Hashable, ...]], default: Any = None) -> Any:
        return super().get(_of_any(key), default)

    def __setitem__(self, key: tuple[sa.Dialect, *tuple[Hashable, ...]], value: Any) -> None:
        super().__setitem__(_of_any(key), value)


def _of_any(key: tuple[sa.Dialect, *tuple[Hashable, ...]]) -> tuple[Hashable, ...]:
    """A key that does not depend on which engine of its kind compiles the statement."""
    dialect, *rest = key
    return type(dialect), *rest


_compiled = _Compiled(5_000)


def _configure(conf: cfg.ConfigOpts, url: str) -> None:
    conf.set_override("connection", url, group="database")
    configure(conf)


def configure(conf: cfg.ConfigOpts) -> None:
    """As :func:`.db.configure`, with what this process has compiled."""
    _of_product(conf)
    for engine in db.engines():
        share_compiled(engine)


_of_product = db.configure


def share_compiled(engine: sa.Engine) -> None:
    """Have the engine take what others of this process have compiled."""
    engine._compiled_cache = _compiled


_made_alias = sa.Table.alias
_named_alias = functools.cache(_made_alias)


def share_aliases() -> None:
    """Give an alias of a table that has a name to all who ask for it.

    Placement makes its aliases anew for each statement, and copies the columns of the tables.
    """

    def alias(table: sa.Table, name: str | None = None, **rest: Any) -> sa.FromClause:
        return _named_alias(table, name) if name else _made_alias(table, **rest)

    sa.Table.alias = alias  # type: ignore[assignment,method-assign]


def _upgrade(conf: cfg.ConfigOpts, url: str) -> None:
    _configure(conf, url)
    schema.upgrade()
    db.dispose()


def _connected(url: str) -> contextlib.closing[sa.Connection]:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    # A percent sign in a statement is one.
    return contextlib.closing(engine.connect().execution_options(no_parameters=True))


def _cut_off_others(connection: sa.Connection) -> None:
    """Close what a test has left open, as DROP DATABASE would."""
    listed = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id != "
    asked, end = f"{listed} CONNECTION_ID()", time.monotonic() + 60
    while others := connection.exec_driver_sql(asked).scalars().all():
        assert time.monotonic() < end, others
        for other in others:
            with contextlib.suppress(sa.exc.OperationalError):
                connection.exec_driver_sql(f"KILL {other}")
        time.sleep(0.01)


def _empty(connection: sa.Connection) -> None:
    names = [name for name in sa.inspect(connection).get_table_names() if name != _REVISION]
    asked = " UNION ALL ".join(
        f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM `{name}`)" for name in names
    )
    connection.exec_driver_sql("SET FOREIGN_KEY_CHECKS = 0")
    for name in connection.exec_driver_sql(asked).scalars().all():
        # Faster than TRUNCATE, which makes the table anew.
        connection.exec_driver_sql(f"DELETE FROM `{name}`")
    counted = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
    for name in connection.exec_driver_sql(f"{counted} AND auto_increment > 1").scalars().all():
        connection.exec_driver_sql(f"ALTER TABLE `{name}` AUTO_INCREMENT = 1")


def _shape(connection: sa.Connection) -> str:
    """The columns and indexes of a database, and the revision that it says."""
    parts = [
        "SELECT table_name, column_name, column_type, is_nullable FROM information_schema.columns",
        "SELECT table_name, index_name, column_name, non_unique FROM information_schema.statistics",
    ]
    asked = [f"{part} WHERE table_schema = DATABASE() ORDER BY 1, 2, 3" for part in parts]
    return str([connection.exec_driver_sql(each).all() for each in [*asked, _SAID]])
