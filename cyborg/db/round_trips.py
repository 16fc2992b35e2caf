# SPDX-License-Identifier: Apache-2.0
"""Fewer round trips to a database server: no ping and no ROLLBACK that changes nothing."""

from __future__ import annotations

import functools
import select
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import pool

from cyborg.common import faster

#: Seconds after its use for which a connection is not pinged. If the server closes it meanwhile,
#: that is seen on the socket; only a server that fell silent is not.
FRESH = 1.0

_ENDED = "cyborg_transaction_ended"
_USED = "cyborg_used"


def save(engine: sa.Engine) -> None:
    """Make a pool of oslo.db ping only connections that rested, and roll back only open work.

    By default each transaction costs a ping before it and another ROLLBACK after its end.
    """
    _ping_rested(engine)
    sa.event.listen(engine, "reset", _roll_back_if_open)
    sa.event.listen(engine, "commit", _note_end)
    sa.event.listen(engine, "rollback", _note_end)
    sa.event.listen(engine, "handle_error", _forget_end_after_error)
    sa.event.listen(engine, "before_cursor_execute", _forget_end)


def end_each_statement(engine: sa.Engine) -> None:
    """Make each statement on connections of oslo.db's engine a transaction of its own."""

    def end_statements(dbapi_connection: Any, _record: Any) -> None:
        engine.dialect.set_isolation_level(dbapi_connection, "AUTOCOMMIT")

    sa.event.listen(engine, "connect", end_statements)
    engine.dialect.skip_autocommit_rollback = True
    _ping_rested(engine)
    sa.event.listen(engine, "reset", lambda connection, record, _: _note_use(connection, record))


def _ping_rested(engine: sa.Engine) -> None:
    faster.ping_nothing(engine.pool, pool.base.reset_none)
    sa.event.listen(engine, "connect", _note_use)
    sa.event.listen(engine, "checkout", functools.partial(_check, engine.dialect))


def _note_use(_dbapi_connection: Any, record: Any) -> None:
    record.info[_USED] = time.monotonic()


def _check(dialect: sa.Dialect, dbapi_connection: Any, record: Any, _fairy: Any) -> None:
    """Ping a connection that rested; look whether the server has closed one that did not.

    :raises InvalidatePoolError: the server does not have it any more; the pool opens another
    """
    try:
        if time.monotonic() - record.info[_USED] > FRESH:
            dialect.do_ping(dbapi_connection)
        elif _has_unread_bytes(dbapi_connection):
            raise sa.exc.InvalidatePoolError
    except dialect.loaded_dbapi.Error as exc:
        raise sa.exc.InvalidatePoolError from exc


def _has_unread_bytes(dbapi_connection: Any) -> bool:
    """Whether there is anything to read between two statements, such as the end of the stream."""
    # The connection has a fileno(), or PyMySQL's a socket that has one.
    socket = getattr(dbapi_connection, "_sock", dbapi_connection)
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _roll_back_if_open(dbapi_connection: Any, record: Any, state: Any) -> None:
    _note_use(dbapi_connection, record)
    ended = record.info.pop(_ENDED, False) or state.transaction_was_reset
    if not (ended or state.terminate_only):
        dbapi_connection.rollback()


def _note_end(connection: sa.Connection) -> None:
    """The transaction ends now, unless that fails."""
    if not connection.invalidated:
        connection.info[_ENDED] = True


def _forget_end_after_error(context: Any) -> None:
    if context.connection is not None:
        _forget_end(context.connection)


def _forget_end(connection: sa.Connection, *_: Any) -> None:
    if not (connection.closed or connection.invalidated):
        connection.info.pop(_ENDED, None)
