# SPDX-License-Identifier: Apache-2.0
"""Databases with the newest schema, copied from one that the migrations have made.

The migrations themselves take most of a second on MariaDB, more than many a test.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import pathlib
import shutil
import time
import uuid
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import util

from cyborg import db
from cyborg.db import models, schema
from cyborg.tests import servers

_REVISION = "alembic_version"
_SAID = f"SELECT version_num FROM {_REVISION}"


class Templates:
    """What is copied or used again: it is made once a process, when the first test asks for it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._sqlite = folder / "template.sqlite"
        #: By server, databases that are as the migrations have made them, and how that is.
        self._spare: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
        self._made: dict[str, str] = {}
        self._on_servers = contextlib.ExitStack()

    def close(self) -> None:
        """Drop what is on a server."""
        self._on_servers.close()

    def fill(self, url: str, conf: cfg.ConfigOpts) -> None:
        """Have the process configured for a database with the newest schema.

        Where it is SQLite it is made.
        """
        if sa.make_url(url).get_backend_name() == "sqlite":
            self._copy_file(url, conf)
        _configure(conf, url)
        # Of the pool's first connection more is asked than of the others.
        with db.engine().connect():
            pass

    @contextlib.contextmanager
    def on_server(self, server: str, conf: cfg.ConfigOpts) -> Iterator[str]:
        """The URL of a database on a server that has the newest schema.

        Servers take long to make and to drop tables: the next test has the same ones, emptied.
        """
        spare, cleaner = self._spare[server], _CLEANERS[server]
        if not spare:
            name = f"cyborg_{uuid.uuid4().hex[:12]}"
            url = self._on_servers.enter_context(servers.new_database(server, name))
            _upgrade(conf, url)
            spare.append(url)
            with _connected(url) as connection:
                self._made.setdefault(server, cleaner.shape_of(connection))
        url = spare.pop()
        yield url
        with _connected(url) as connection:
            cleaner.empty(connection)
            if cleaner.shape_of(connection) == self._made[server]:
                spare.append(url)

    def _copy_file(self, url: str, conf: cfg.ConfigOpts) -> None:
        if not self._sqlite.exists():
            _upgrade(conf, f"sqlite:///{self._sqlite}")
        shutil.copyfile(self._sqlite, str(sa.make_url(url).database))


@dataclass(frozen=True)
class _Cleaner:
    """Statements by which a database of a server becomes as it was made."""

    #: The connections of others, and what closes one.
    others: str
    close: str
    #: Lets rows of a table that refer to each other be deleted.
    unbind: str
    #: Whose numbers begin again, and how.
    counters: str
    restart: str
    #: The columns and the indexes.
    shape: tuple[str, str]

    def empty(self, connection: sa.Connection) -> None:
        """Close what a test has left open, as DROP DATABASE would, and delete its rows."""
        end = time.monotonic() + 60
        while others := close_others(connection):
            assert time.monotonic() < end, others
            time.sleep(0.01)
        there = set(sa.inspect(connection).get_table_names()) - {_REVISION}
        # Those that refer to others come first.
        order = [table.name for table in reversed(models.Base.metadata.sorted_tables)]
        names = [*there.difference(order), *filter(there.__contains__, order)]
        quote = connection.dialect.identifier_preparer.quote_identifier
        asked = " UNION ALL ".join(
            f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {quote(name)})" for name in names
        )
        connection.exec_driver_sql(self.unbind)
        full = set(connection.exec_driver_sql(asked).scalars().all())
        for name in filter(full.__contains__, names):
            # Faster than TRUNCATE, which makes the table anew.
            connection.exec_driver_sql(f"DELETE FROM {quote(name)}")
        for name in connection.exec_driver_sql(self.counters).scalars().all():
            connection.exec_driver_sql(self.restart.format(quote(name)))

    def shape_of(self, connection: sa.Connection) -> str:
        """The columns and indexes, and the revision that the database says."""
        return str([connection.exec_driver_sql(each).all() for each in (*self.shape, _SAID)])


def close_others(connection: sa.Connection) -> Sequence[int]:
    """Close the connections of others to this database; those that there were."""
    cleaner = _CLEANERS[connection.dialect.name]
    others = connection.exec_driver_sql(cleaner.others).scalars().all()
    for other in others:
        with contextlib.suppress(sa.exc.OperationalError):
            connection.exec_driver_sql(cleaner.close.format(other))
    return others


_COLUMNS = (
    "SELECT table_name, column_name, {}, is_nullable FROM information_schema.columns"
    " WHERE table_schema = {} ORDER BY 1, 2"
)
_CLEANERS = {
    "mysql": _Cleaner(
        others="SELECT id FROM information_schema.processlist"
        " WHERE db = DATABASE() AND id != CONNECTION_ID()",
        close="KILL {}",
        unbind="SET FOREIGN_KEY_CHECKS = 0",
        counters="SELECT table_name FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND auto_increment > 1",
        restart="ALTER TABLE {} AUTO_INCREMENT = 1",
        shape=(
            _COLUMNS.format("column_type", "DATABASE()"),
            (
                "SELECT table_name, index_name, column_name, non_unique"
                " FROM information_schema.statistics"
                " WHERE table_schema = DATABASE() ORDER BY 1, 2, 3"
            ),
        ),
    ),
    "postgresql": _Cleaner(
        others="SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid != pg_backend_pid()",
        close="SELECT pg_terminate_backend({}, 10000)",
        unbind="SELECT 'needs nothing'",
        counters="SELECT sequencename FROM pg_sequences WHERE last_value IS NOT NULL",
        restart="ALTER SEQUENCE {} RESTART",
        shape=(
            _COLUMNS.format("data_type", "'public'"),
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
        ),
    ),
}


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
