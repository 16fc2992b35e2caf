# SPDX-License-Identifier: Apache-2.0
"""Databases with the newest schema, copied from one that the migrations have made.

The migrations themselves take most of a second on MariaDB, more than many a test.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import uuid
from collections.abc import Hashable
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import util

from cyborg import db
from cyborg.db import schema
from cyborg.tests import servers


class Templates:
    """What is copied: it is made once a process, when the first test asks for it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._sqlite = folder / "template.sqlite"
        self._mysql: list[str] = []
        self._postgresql: str | None = None
        self._on_servers = contextlib.ExitStack()

    def close(self) -> None:
        """Drop what is on a server."""
        self._on_servers.close()

    def fill(self, url: str, conf: cfg.ConfigOpts) -> None:
        """Give an empty database the newest schema, and have the process configured for it."""
        kind = sa.make_url(url).get_backend_name()
        if kind == "sqlite":
            self._copy_file(url, conf)
        elif kind == "mysql":
            self._run_statements(url, conf)
        else:
            self._copy_on_server(url, conf)
        _configure(conf, url)
        # Of the pool's first connection more is asked than of the others.
        with db.engine().connect():
            pass

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

    def _run_statements(self, url: str, conf: cfg.ConfigOpts) -> None:
        if not self._mysql:
            with servers.new_database("mysql", f"cyborg_{uuid.uuid4().hex[:12]}") as template:
                _upgrade(conf, template)
                self._mysql = _statements(template)
        with _connected(url) as connection:
            for statement in self._mysql:
                connection.exec_driver_sql(statement)


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
    db.configure(conf)
    for engine in db.engines():
        share_compiled(engine)


def share_compiled(engine: sa.Engine) -> None:
    """Have the engine take what others of this process have compiled."""
    engine._compiled_cache = _compiled


def _upgrade(conf: cfg.ConfigOpts, url: str) -> None:
    _configure(conf, url)
    schema.upgrade()
    db.dispose()


def _connected(url: str) -> contextlib.closing[sa.Connection]:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    # A percent sign in a statement is one.
    return contextlib.closing(engine.connect().execution_options(no_parameters=True))


def _statements(url: str) -> list[str]:
    """What makes the tables of the database, which have no rows but their revision's."""
    with _connected(url) as connection:
        names = sa.inspect(connection).get_table_names()
        shown = [connection.exec_driver_sql(f"SHOW CREATE TABLE `{name}`").one() for name in names]
        filled = [
            name
            for name in names
            if connection.exec_driver_sql(f"SELECT 1 FROM `{name}` LIMIT 1").first()
        ]
        assert filled == ["alembic_version"], filled
        revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return [
        "SET FOREIGN_KEY_CHECKS = 0",
        *(str(row[1]) for row in shown),
        f"INSERT INTO alembic_version VALUES ('{revision}')",
    ]
