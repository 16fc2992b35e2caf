# SPDX-License-Identifier: Apache-2.0
"""The one place where transactions open: :func:`reader`, :func:`writer` and :func:`retry`.

Importing the package does not bind it to a database; :func:`configure` does, once a process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import exception as db_exc
from oslo_db import options as db_options
from oslo_db.sqlalchemy import enginefacade
from sqlalchemy import orm
from sqlalchemy.ext import compiler as sa_compiler

from cyborg import errors
from cyborg.db import sqlite as sqlite_engine

P = ParamSpec("P")
R = TypeVar("R")

#: How often a transaction that lost a race is started again before the loss is an error.
MAX_RESTARTS = 30

#: MySQL and MariaDB: "record has changed since last read", a lost snapshot; and a deadlock in
#: whatever words, of which oslo.db does not know all that Galera says at COMMIT.
_MYSQL_LOST_RACES = frozenset({1020, 1213})


class RestartTransaction(Exception):
    """Raised inside a :func:`retry` function whose transaction must be run again from the start."""


class _Facade:
    """Holds the enginefacade of this process."""

    def __init__(self) -> None:
        self.manager = enginefacade.transaction_context()

    def replace(self, **options: Any) -> None:
        self.manager = enginefacade.transaction_context()
        self.manager.configure(**options)


@enginefacade.transaction_context_provider
class _Transaction:
    """What enginefacade hangs one session on; one of these a transaction."""


_facade = _Facade()


def register(conf: cfg.ConfigOpts) -> None:
    """Make the options of ``[database]`` known to ``conf``."""
    conf.register_opts(db_options.database_opts, group="database")
    # A database that is down must not hold a request for minutes: it answers 503 at once.
    conf.set_default("max_retries", 0, group="database")


def configure(conf: cfg.ConfigOpts) -> None:
    """Bind this process to ``[database] connection``; a second call moves it to another one.

    :raises ServiceUnavailable: there is no such option
    """
    register(conf)
    if not conf.database.connection:
        raise errors.ServiceUnavailable("There is no database: [database] connection is not set.")
    dispose()
    options = {name: getattr(conf.database, name) for name in _FACADE_OPTIONS}
    given = {name: value for name, value in options.items() if value is not None}
    _facade.replace(sqlite_fk=True, **given)
    if conf.database.connection.startswith("sqlite"):
        sqlite_engine.prepare(engine())
    elif conf.database.connection.startswith(("mysql", "mariadb")):
        sa.event.listen(engine(), "connect", _prepare_mysql)
        engine().dispose()


def _prepare_mysql(dbapi_connection: Any, record: Any) -> None:
    """Make a new connection to MySQL behave like one to PostgreSQL.

    Each statement sees what was committed before it began: a transaction that waited for a lock
    must see what its predecessor wrote, and InnoDB then does not keep locks on rows it only looked
    at. And texts may hold every character, not only those of three bytes, which is what oslo.db
    and most connection URLs ask for as ``utf8``.
    """
    with dbapi_connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute("SET NAMES utf8mb4")


#: The options of ``[database]`` that enginefacade takes; the rest of the group is its own.
_FACADE_OPTIONS = frozenset(
    {
        "connection",
        "connection_debug",
        "connection_parameters",
        "connection_recycle_time",
        "connection_trace",
        "max_overflow",
        "max_pool_size",
        "max_retries",
        "mysql_sql_mode",
        "mysql_wsrep_sync_wait",
        "pool_timeout",
        "retry_interval",
        "sqlite_synchronous",
    }
)


def dispose() -> None:
    """Close every pooled connection; the next transaction opens new ones."""
    with contextlib.suppress(TypeError, AttributeError):
        _facade.manager.dispose_pool()


def engine() -> sa.Engine:
    """The engine that :func:`writer` uses, for migrations and tests."""
    return cast(sa.Engine, _facade.manager.writer.get_engine())


@contextlib.contextmanager
def reader() -> Iterator[orm.Session]:
    """A session for reading; nothing it changes is kept."""
    with _unavailable_is_503(), _facade.manager.reader.using(_Transaction()) as session:
        yield session


@contextlib.contextmanager
def writer() -> Iterator[orm.Session]:
    """A session whose transaction commits when the block ends and rolls back when it raises."""
    with _unavailable_is_503(), _facade.manager.writer.using(_Transaction()) as session:
        session.connection(execution_options={sqlite_engine.WRITER: True})
        yield session


@contextlib.contextmanager
def _unavailable_is_503() -> Iterator[None]:
    try:
        yield
    except (db_exc.DBConnectionError, sa.exc.OperationalError) as exc:
        # oslo.db does not know the words in which newer PostgreSQL clients say that they cannot
        # connect. Besides that only a COMMIT has no statement.
        is_other = isinstance(exc, sa.exc.OperationalError) and exc.statement is not None
        if is_other or _is_lost_race(exc):
            raise
        raise errors.ServiceUnavailable(
            "The database cannot be reached at present; try again later."
        ) from exc


def retry(function: Callable[P, R]) -> Callable[P, R]:
    """Run ``function``, which opens one transaction of its own, again whenever it lost a race.

    Lost races are deadlocks, lock time-outs, lost snapshots, a locked SQLite file and
    :class:`RestartTransaction`. The whole function runs again, so that it reads the new state.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for attempt in range(MAX_RESTARTS):
            try:
                return function(*args, **kwargs)
            except (db_exc.DBError, sa.exc.OperationalError, RestartTransaction) as exc:
                if not _is_lost_race(exc):
                    raise
            time.sleep(random.uniform(0, min(0.5, 0.01 * 2**attempt)))
        raise errors.ServiceUnavailable("The request kept losing races; try it again.")

    return wrapper


def _is_lost_race(exc: Exception) -> bool:
    if isinstance(exc, db_exc.DBDeadlock | RestartTransaction):
        return True
    inner = getattr(exc, "inner_exception", exc)
    arguments = getattr(getattr(inner, "orig", inner), "args", ())
    return not _MYSQL_LOST_RACES.isdisjoint(arguments) or any(
        "database is locked" in str(argument) for argument in arguments
    )


class now_ms(sa.sql.functions.FunctionElement[int]):  # noqa: N801 - reads as an SQL function
    """The database's clock in milliseconds since the epoch: one clock for all conductors."""

    type = sa.BigInteger()
    inherit_cache = True


@sa_compiler.compiles(now_ms, "sqlite")
def _now_ms_sqlite(element: Any, compiler: Any, **kwargs: Any) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


@sa_compiler.compiles(now_ms, "mysql")
@sa_compiler.compiles(now_ms, "mariadb")
def _now_ms_mysql(element: Any, compiler: Any, **kwargs: Any) -> str:
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)"


@sa_compiler.compiles(now_ms, "postgresql")
def _now_ms_postgresql(element: Any, compiler: Any, **kwargs: Any) -> str:
    # clock_timestamp() may change within a statement, so no index could be searched for it.
    return "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000 AS BIGINT)"


class exactly(sa.sql.functions.FunctionElement[str]):  # noqa: N801 - reads as an SQL function
    """A text that is equal to the same bytes only, also where the column folds case on MySQL."""

    type = sa.Text()
    inherit_cache = True


@sa_compiler.compiles(exactly)
def _exactly(element: Any, compiler: Any, **kwargs: Any) -> str:
    return str(compiler.process(element.clauses, **kwargs))


@sa_compiler.compiles(exactly, "mysql")
@sa_compiler.compiles(exactly, "mariadb")
def _exactly_mysql(element: Any, compiler: Any, **kwargs: Any) -> str:
    return f"{compiler.process(element.clauses, **kwargs)} COLLATE utf8mb4_bin"


def upsert(
    session: orm.Session,
    model: type[orm.DeclarativeBase],
    rows: Sequence[Mapping[str, Any]],
    *,
    key: Sequence[str],
    update: Mapping[str, Any],
) -> None:
    """Insert ``rows`` of ``model``, or where ``key`` exists already apply ``update`` to that row.

    ``rows`` and ``update`` name columns. The row stays locked until the transaction ends.
    """
    table = cast(sa.Table, model.__table__)
    dialect = session.get_bind().dialect.name.replace("mariadb", "mysql")
    # Already loaded for the database in use; those of the others would take 4 MiB.
    insert: Any = importlib.import_module(f"sqlalchemy.dialects.{dialect}").insert
    statement = insert(table).values(list(rows))
    if dialect == "mysql":
        statement = statement.on_duplicate_key_update(**update)
    else:
        statement = statement.on_conflict_do_update(index_elements=list(key), set_=dict(update))
    session.execute(statement)


def update(
    session: orm.Session,
    model: type[orm.DeclarativeBase],
    *where: sa.ColumnElement[bool],
    **values: Any,
) -> int:
    """Run one guarded UPDATE and return how many rows met the guard.

    Objects that the session has loaded already are not changed by it.
    """
    statement = sa.update(model).where(*where).values(**values)
    return _matched(session, statement)


def delete(
    session: orm.Session, model: type[orm.DeclarativeBase], *where: sa.ColumnElement[bool]
) -> int:
    """Run one guarded DELETE and return how many rows met the guard."""
    return _matched(session, sa.delete(model).where(*where))


def after_commit(session: orm.Session, function: Callable[[], None]) -> None:
    """Call ``function`` when the caller's transaction is committed, and never if it is not."""
    sa.event.listen(session, "after_commit", lambda _session: function(), once=True)


def _matched(session: orm.Session, statement: sa.UpdateBase) -> int:
    options = {"synchronize_session": False}
    result = session.execute(statement, execution_options=options)
    return cast(int, cast(Any, result).rowcount)
