# SPDX-License-Identifier: Apache-2.0
"""The one place where transactions open: :func:`reader`, :func:`snapshot` and :func:`writer`.

:func:`rows` and :func:`write` are for single statements, and so are :func:`read_one` and
:func:`read_all`.

Importing the package connects to no database; :func:`configure` names it, once per process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, cast

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import exception as db_exc
from oslo_db import options as db_options
from oslo_db.sqlalchemy import enginefacade
from sqlalchemy import orm
from sqlalchemy.ext import compiler as sa_compiler

from cyborg.common import errors, needs
from cyborg.db import connections, outage, round_trips
from cyborg.db import sqlite as sqlite_engine

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
M = TypeVar("M", bound=orm.DeclarativeBase)

#: Attempts at a transaction that keeps losing races, before it is an error.
MAX_RESTARTS = 30
#: Seconds after which it is not attempted again, so that who waits for it is answered.
MAX_RETRY_SECONDS = 30.0

_UNREACHABLE = "The database cannot be reached at present; try again later."
_BUSY = "The database is busy with the same objects for others; try again later."
_ENDED = "The database has ended a query that took too long; try again later."
_READ_ONLY = "The database takes no changes at present; try again later."
_NO_CONNECTION = "All connections to the database are in use; try again later."

#: The key in a session's ``info`` of what is to be called after its commit.
_AFTER_COMMIT = "cyborg_after_commit"

#: Error codes of lost races. Of MySQL and MariaDB: 1020 "record has changed since last read", a
#: lost snapshot; 1205 a lock time-out; 1213 deadlock; 1412 "table definition has changed, please
#: retry transaction", where an upgrade has altered a table. Of PostgreSQL: a serialization failure,
#: a deadlock, a lock time-out. oslo.db recognizes some, and not every text that Galera sends.
_LOST_RACES = frozenset({1020, 1205, 1213, 1412, "40001", "40P01", "55P03"})
#: Error codes of other faults that pass, of MySQL, MariaDB and PostgreSQL.
_PASSING = {
    **dict.fromkeys((1317, 1969, 3024, "57014"), _ENDED),
    **dict.fromkeys((1290, 1792, 1836, "25006"), _READ_ONLY),
}

#: Raised when a connection is lost while SQLAlchemy still asks a server what it is: oslo.db reads
#: what such a connection does not have, or SQLAlchemy asks once more.
LOST_AT_FIRST = (NotImplementedError, sa.exc.ResourceClosedError)


#: The names of the two engines of a process, by their properties in :class:`_Facade`.
_WHOLE, _PLAIN = "engine", "plain_engine"


class LostRace(errors.ServiceUnavailable):
    """Another transaction was faster, or keeps what this one needs; :func:`retry` runs it again."""


class RestartTransaction(Exception):
    """Raised in a :func:`retry` function to roll back and run it again from the start."""


class _Facade:
    """Holds this process's enginefacade, which makes the engines."""

    def __init__(self) -> None:
        self.manager = enginefacade.transaction_context()
        #: Which of the engines have had a connection, and so know what their server is.
        self.connected: set[str] = set()

    def replace(self, **options: Any) -> None:
        self.manager = enginefacade.transaction_context()
        self.connected = set()
        # It would let other green threads run; we have none.
        self.manager.configure(thread_checkin=False, **options)

    @property
    def engine(self) -> sa.Engine:
        return cast(sa.Engine, self.manager.writer.get_engine())

    @property
    def plain_engine(self) -> sa.Engine:
        """Where each statement is a transaction, with one round trip; on SQLite the same engine."""
        return cast(sa.Engine, self.manager.reader.get_engine())


_facade = _Facade()
_outage = outage.Outage()


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options of ``[database]``."""
    conf.register_opts(db_options.database_opts, group="database")
    # A database that is down must not hold a request for minutes: it answers 503 at once.
    conf.set_default("max_retries", 0, group="database")


def configure(conf: cfg.ConfigOpts, *, patient: bool = False) -> None:
    """Use ``[database] connection`` in this process; a second call switches to another database.

    ``patient``: the server may take any time for a statement, as an upgrade's do.

    :raises Misconfigured: the option is not set, or names no database that can be used
    """
    register(conf)
    if not conf.database.connection:
        raise errors.Misconfigured("There is no database: [database] connection is not set.")
    _check_url(conf.database.connection)
    dispose()
    options = {name: getattr(conf.database, name) for name in _FACADE_OPTIONS}
    given = {name: value for name, value in options.items() if value is not None}
    if conf.database.connection.startswith("sqlite"):
        _facade.replace(sqlite_fk=True, **given)
        _hide_values()
        sqlite_engine.prepare(engine())
        _facade.connected = {_WHOLE, _PLAIN}
        return
    # A pool of its own: to change a connection's mode and back would cost two round trips.
    _facade.replace(slave_connection=conf.database.connection, **given)
    _hide_values()
    for name, each in ((_WHOLE, _facade.engine), (_PLAIN, _facade.plain_engine)):
        connections.prepare(each, patient=patient)
        # After what SQLAlchemy does with the first connection.
        sa.event.listen(each, "connect", functools.partial(_note_connected, _facade, name))
        each.dispose()
    round_trips.save(_facade.engine)
    round_trips.end_each_statement(_facade.plain_engine)


def _hide_values() -> None:
    """Have no error and no log say the values of a statement, since some are secrets."""
    for each in engines():
        each.hide_parameters = True


def _check_url(text: str) -> None:
    """Check that there is a driver for the URL. No message has the URL, which has a password."""
    try:
        url = sa.make_url(text)
        url.get_dialect().import_dbapi()
    except sa.exc.NoSuchModuleError as exc:
        raise errors.Misconfigured(
            f"[database] connection names {url.drivername}, which SQLAlchemy does not know."
        ) from exc
    except sa.exc.ArgumentError as exc:
        raise errors.Misconfigured(
            "[database] connection is not the URL of a database; write it like "
            "mysql+pymysql://user:password@host/cyborg."
        ) from exc
    except ImportError as exc:
        extras = "mysql (pymysql), mysqlclient (MySQLdb) or postgresql (psycopg2)"
        package = f"Cyborg with its extra {extras}"
        raise needs.missing("[database] connection", str(exc.name), package, exc) from exc


def _note_connected(facade: _Facade, name: str, *_: Any) -> None:
    facade.connected.add(name)


#: The options of ``[database]`` that are passed to enginefacade.
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
    """Close every pooled connection; the next transaction opens a new one."""
    with contextlib.suppress(TypeError, AttributeError):
        _facade.manager.dispose_pool()


def engine() -> sa.Engine:
    """The engine that :func:`writer` uses, for migrations and tests."""
    return _facade.engine


def engines() -> set[sa.Engine]:
    """Every engine of this process."""
    return {_facade.engine, _facade.plain_engine}


@contextlib.contextmanager
def reader() -> Iterator[orm.Session]:
    """A session for reading, whose statements each see what was committed before it."""
    with _passing_is_503(_PLAIN), _session(_facade.plain_engine) as session:
        yield session


@contextlib.contextmanager
def snapshot() -> Iterator[orm.Session]:
    """A session for reading, whose statements all see what was committed before the first one."""
    with _passing_is_503(_WHOLE), _session(_facade.engine) as session:
        # SQLite's transactions are like that anyway.
        if session.get_bind().dialect.name != "sqlite":
            # For this transaction alone, whereas an option of SQLAlchemy is undone by setting what
            # was the default when the engine connected, before connections.prepare.
            session.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        yield session


@contextlib.contextmanager
def writer() -> Iterator[orm.Session]:
    """A session whose transaction commits when the block ends and rolls back when it raises.

    If the answer to its COMMIT is lost, the error says that it is in doubt.
    """
    commits = False
    try:
        with _passing_is_503(_WHOLE), _session(_facade.engine) as session:
            session.connection(execution_options={sqlite_engine.WRITER: True})
            yield session
            session.flush()
            commits = True
            session.commit()
    except errors.DatabaseUnreachable as exc:
        exc.in_doubt = exc.in_doubt or commits
        raise
    for function in session.info.get(_AFTER_COMMIT, ()):
        function()


@contextlib.contextmanager
def statement() -> Iterator[orm.Session]:
    """A session for one statement that writes: a server commits that without a COMMIT."""
    if _facade.plain_engine is _facade.engine:
        with writer() as session:
            yield session
    else:
        with reader() as session:
            yield session


def rows(
    statement: sa.Select[*tuple[Any, ...]], given: Mapping[str, Any] = MappingProxyType({})
) -> list[Any]:
    """What one statement that reads columns finds with the values ``given``, without a session.

    For what runs again and again: a session costs as much as running the statement does.
    """
    with _passing_is_503(_PLAIN), _facade.plain_engine.connect() as connection:
        return list(connection.execute(statement, given))


def write(statement: sa.Update | sa.Delete, given: Mapping[str, Any]) -> int:
    """Run one UPDATE or DELETE as a transaction, without a session; return how many rows matched.

    Nothing is called after its commit.
    """
    with _passing_is_503(_PLAIN), _facade.plain_engine.connect() as connection:
        connection.execution_options(**{sqlite_engine.WRITER: True})
        matching = connection.execute(statement, given).rowcount
        if _facade.plain_engine is _facade.engine:
            connection.commit()
        return matching


def _session(engine: sa.Engine) -> orm.Session:
    return orm.Session(engine, expire_on_commit=False)


@contextlib.contextmanager
def _passing_is_503(name: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    except (db_exc.DBError, sa.exc.DBAPIError, sa.exc.TimeoutError) as exc:
        fault = _fault(exc)
        if fault is None:
            raise
        if isinstance(fault, errors.DatabaseUnreachable):
            _outage.begin(started)
        raise fault from exc
    except LOST_AT_FIRST as exc:
        if name in _facade.connected:
            # Not the first connection: an error of the program.
            raise
        _outage.begin(started)
        raise errors.DatabaseUnreachable(_UNREACHABLE) from exc
    else:
        _outage.end(started)


def _fault(exc: Exception) -> errors.ServiceUnavailable | None:
    """What a fault of the database is to who asked it; None if it will not pass by itself."""
    inner = getattr(exc, "inner_exception", exc)
    cause = getattr(inner, "orig", inner)
    code = getattr(cause, "pgcode", None) or next(iter(getattr(cause, "args", ())), None)
    is_locked = isinstance(exc, db_exc.DBDeadlock) or "database is locked" in str(code)
    if code in _LOST_RACES or is_locked:
        return LostRace(_BUSY)
    if code in _PASSING:
        return errors.ServiceUnavailable(_PASSING[code])
    if isinstance(exc, sa.exc.TimeoutError):
        return errors.ServiceUnavailable(_NO_CONNECTION)
    # oslo.db does not recognize how newer PostgreSQL clients say that they cannot connect. Such an
    # error has no statement; of others only one at COMMIT has none either.
    without_statement = isinstance(exc, sa.exc.OperationalError) and exc.statement is None
    if without_statement or isinstance(exc, db_exc.DBConnectionError):
        return errors.DatabaseUnreachable(_UNREACHABLE)
    return None


def retry(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: run ``function``, which opens exactly one transaction, again if it lost a race.

    The whole function runs again, so that it reads the new state; with two transactions, the first
    would be committed twice.

    :raises ServiceUnavailable: it lost :data:`MAX_RESTARTS` races, or
        :data:`MAX_RETRY_SECONDS` passed
    """
    return _retry(function, lambda: MAX_RETRY_SECONDS)


def retry_for_long(function: Callable[P, R]) -> Callable[P, R]:
    """The same for what nobody waits for, and may take minutes."""
    return _retry(function, lambda: math.inf)


def _retry(function: Callable[P, R], seconds: Callable[[], float]) -> Callable[P, R]:
    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        deadline = time.monotonic() + seconds()
        for attempt in range(MAX_RESTARTS):
            try:
                return function(*args, **kwargs)
            except (LostRace, RestartTransaction) as exc:
                last: Exception = exc
            except (db_exc.DBError, sa.exc.DBAPIError) as exc:
                # An upgrade of the schema has a connection of its own.
                if not isinstance(_fault(exc), LostRace):
                    raise
                last = exc
            if time.monotonic() > deadline:
                break
            time.sleep(random.uniform(0, min(0.5, 0.01 * 2**attempt)))
        raise errors.ServiceUnavailable("The request kept losing races; try it again.") from last

    return wrapper


@contextlib.contextmanager
def restarting(*more: type[Exception]) -> Iterator[None]:
    """Restart the transaction if another has just made the same row, or removed one in use.

    So it does for ``more`` errors.
    """
    try:
        yield
    except (db_exc.DBDuplicateEntry, db_exc.DBReferenceError, *more) as exc:
        raise RestartTransaction from exc


@retry
def read_one(query: sa.Select[T]) -> T | None:
    """The first value that one SELECT finds, in a session of its own; None if it finds none."""
    with reader() as session:
        return session.scalar(query)


@retry
def read_all(query: sa.Select[T]) -> list[T]:
    """The values that one SELECT finds, likewise."""
    with reader() as session:
        return list(session.scalars(query))


class now_ms(sa.sql.functions.FunctionElement[int]):  # noqa: N801 - reads as an SQL function
    """The database's clock in milliseconds since the epoch, so that all processes share one."""

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
    # clock_timestamp() may change within a statement, so PostgreSQL uses no index with it.
    return "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000 AS BIGINT)"


class exactly(sa.sql.functions.FunctionElement[str]):  # noqa: N801 - reads as an SQL function
    """A text that equals only the same bytes, even if the column ignores case on MySQL."""

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
    """Insert ``rows`` of ``model``; if a row with the same ``key`` exists, apply ``update`` to it.

    ``rows`` and ``update`` map column names to values, ``key`` names the columns of a unique
    constraint. The rows stay locked until the transaction ends.
    """
    dialect = session.get_bind().dialect.name
    session.execute(upsert_of(dialect, model, rows, key=key, update=update))


def upsert_of(
    dialect: str,
    model: type[orm.DeclarativeBase],
    rows: Sequence[Mapping[str, Any]],
    *,
    key: Sequence[str],
    update: Mapping[str, Any],
) -> sa.Insert:
    """The statement of :func:`upsert`, for the database in use."""
    name = dialect.replace("mariadb", "mysql")
    # Already loaded for the database in use; those of the others would take 4 MiB.
    insert: Any = importlib.import_module(f"sqlalchemy.dialects.{name}").insert
    # SQLAlchemy compiles an INSERT of several rows each time.
    statement = insert(model.__table__).values(rows[0] if len(rows) == 1 else list(rows))
    if name == "mysql":
        return cast(sa.Insert, statement.on_duplicate_key_update(**update))
    changed = statement.on_conflict_do_update(index_elements=list(key), set_=dict(update))
    return cast(sa.Insert, changed)


def update(
    session: orm.Session,
    model: type[orm.DeclarativeBase],
    *where: sa.ColumnElement[bool],
    **values: Any,
) -> int:
    """Run one UPDATE guarded by ``where``; return how many rows matched.

    Objects that the session has loaded keep their old values.
    """
    statement = sa.update(model).where(*where).values(**values)
    return matched(session, statement)


def delete(
    session: orm.Session, model: type[orm.DeclarativeBase], *where: sa.ColumnElement[bool]
) -> int:
    """Run one DELETE guarded by ``where``; return how many rows matched."""
    return matched(session, sa.delete(model).where(*where))


def change_due(
    model: type[M],
    *due: sa.ColumnElement[bool],
    limit: int,
    change: Callable[[orm.Session, list[M]], None],
) -> list[M]:
    """Apply ``change`` to at most ``limit`` rows of ``model`` that meet ``due``; return the rows.

    For periodic tasks: it costs one SELECT if no row is due. ``change`` gets the rows locked, in
    a transaction that opens and commits here. Rows that another transaction has locked are left
    out.
    """
    ids = _due_ids(model, due, limit)
    return _change_still_due(model, (cast(Any, model).id.in_(ids), *due), change) if ids else []


@retry
def _due_ids(model: type[M], due: tuple[sa.ColumnElement[bool], ...], limit: int) -> list[int]:
    with reader() as session:
        return list(session.scalars(sa.select(cast(Any, model).id).where(*due).limit(limit)))


@retry
def _change_still_due(
    model: type[M],
    due: tuple[sa.ColumnElement[bool], ...],
    change: Callable[[orm.Session, list[M]], None],
) -> list[M]:
    query = sa.select(model).where(*due).order_by(cast(Any, model).id)
    with writer() as session:
        rows = list(session.scalars(query.with_for_update(skip_locked=True)))
        if rows:
            change(session, rows)
    return rows


def after_commit(session: orm.Session, function: Callable[[], None]) -> None:
    """Call ``function`` once when the caller's :func:`writer` has committed, and only then."""
    functions: list[Callable[[], None]] = session.info.setdefault(_AFTER_COMMIT, [])
    if function not in functions:
        functions.append(function)


def matched(
    session: orm.Session,
    statement: sa.UpdateBase,
    given: Mapping[str, Any] | Sequence[Mapping[str, Any]] = MappingProxyType({}),
) -> int:
    """Run one UPDATE or DELETE with the values ``given``; return how many rows matched.

    With several sets of values it is run for each of them.
    """
    options = {"synchronize_session": False}
    result = session.execute(statement, given, execution_options=options)
    return cast(int, cast(Any, result).rowcount)
