# SPDX-License-Identifier: Apache-2.0
"""How new connections to a database server behave: for how long they wait, and what they see."""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa

from cyborg.common import faster

#: Seconds for which a statement waits for a lock of another transaction, on a server. InnoDB waits
#: for 50 by default, and PostgreSQL for ever.
LOCK_WAIT_SECONDS = 5
#: Seconds after which a server that does not answer at all counts as away, as PyMySQL has it; the
#: other drivers wait for minutes.
CONNECT_SECONDS = 10
#: Seconds after which a connection is given up whose server has fallen silent in the middle. By
#: themselves the drivers wait for ever, and each thread of the API would end there.
SILENT_SECONDS = 60
_PATIENT = frozenset({"mysqldb", "psycopg", "psycopg2"})
_MYSQL = frozenset({"mysqldb", "pymysql"})

#: How long MySQL and MariaDB wait for a row, and for a table that is being altered.
MYSQL_WAITS = ("innodb_lock_wait_timeout", "lock_wait_timeout")
#: PostgreSQL's setting, unless the URL or the server has one already.
_SET_POSTGRESQL_WAIT = (
    "SELECT set_config(name, CASE setting WHEN '0' THEN '{}' ELSE setting END, false)"
    " FROM pg_settings WHERE name = 'lock_timeout'"
)


def prepare(engine: sa.Engine, *, patient: bool) -> None:
    """Have each new connection of an engine to a server behave as this module says.

    ``patient``: the server may take any time for a statement.
    """
    sa.event.listen(engine, "do_connect", functools.partial(_set_driver, patient=patient))
    if engine.dialect.name in {"mysql", "mariadb"}:
        sa.event.listen(engine, "connect", _prepare_mysql)
    elif engine.dialect.name == "postgresql":
        sa.event.listen(engine, "connect", _prepare_postgresql)


def _set_driver(
    dialect: Any, _record: Any, _args: Any, options: dict[str, Any], *, patient: bool
) -> None:
    """Have a driver give up in time, and believe no server without a good certificate."""
    if dialect.driver in _PATIENT:
        options.setdefault("connect_timeout", CONNECT_SECONDS)
    # By itself mysqlclient logs in without TLS too, or at a server with another name.
    if dialect.driver == "mysqldb" and options.get("ssl"):
        options.setdefault("ssl_mode", "VERIFY_IDENTITY")
    if dialect.driver in _MYSQL:
        options["conv"] = faster.converters(dialect.loaded_dbapi)
    for name, value in ({} if patient else _waits(dialect.driver)).items():
        options.setdefault(name, value)


def _waits(driver: str) -> dict[str, int]:
    """A driver's options for a server that has fallen silent; psycopg sees a dead host only.

    PyMySQL gets none: with a time limit each of its reads costs so much that a boot takes an
    eighth longer.
    """
    if driver == "mysqldb":
        return {"read_timeout": SILENT_SECONDS, "write_timeout": SILENT_SECONDS}
    if driver not in _PATIENT:
        return {}
    probes = {"keepalives_idle": SILENT_SECONDS // 2, "keepalives_interval": SILENT_SECONDS // 6}
    return probes | {"keepalives_count": 3, "tcp_user_timeout": SILENT_SECONDS * 1000}


def _prepare_mysql(dbapi_connection: Any, record: Any) -> None:
    """Make a new connection to MySQL behave like one to PostgreSQL.

    With READ COMMITTED each statement sees what was committed before it began, so a transaction
    that waited for a lock sees what the one before it wrote; and InnoDB keeps no locks on rows
    that it only read. With utf8mb4 texts may hold every character; ``utf8``, which oslo.db and
    most connection URLs ask for, has only those of up to three bytes.
    """
    with dbapi_connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        waits = (f"SESSION {name} = LEAST(@@{name}, {LOCK_WAIT_SECONDS})" for name in MYSQL_WAITS)
        cursor.execute(f"SET NAMES utf8mb4, {', '.join(waits)}")


def _prepare_postgresql(dbapi_connection: Any, record: Any) -> None:
    # Else the ROLLBACK of a first transaction would undo it.
    dbapi_connection.autocommit = True
    with dbapi_connection.cursor() as cursor:
        # To compile what counts a fleet takes seconds, to run it a tenth of one.
        wait = _SET_POSTGRESQL_WAIT.format(LOCK_WAIT_SECONDS * 1000)
        cursor.execute(f"{wait}; SET jit = off")
    dbapi_connection.autocommit = False
