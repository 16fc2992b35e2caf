# SPDX-License-Identifier: Apache-2.0
"""SQLite for one node: write-ahead log, and writers that lock before they read."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sqlite3
from typing import Any

import sqlalchemy as sa

from cyborg.common import errors

#: Execution option that marks a writer's connection.
WRITER = "cyborg_writer"

BUSY_TIMEOUT_MS = 30_000


def prepare(engine: sa.Engine) -> None:
    """Install the connection and transaction hooks on an SQLite engine of oslo.db.

    :raises Misconfigured: its file cannot be used
    """
    sa.event.listen(engine, "connect", _on_connect)
    # Replaces oslo.db's own hook, which emits a plain BEGIN: with that a transaction that reads
    # first and writes later fails with "database is locked" instead of waiting. Listening before
    # that hook (insert=True) has no effect on an engine's events.
    for hook in list(engine.dispatch.begin):
        sa.event.remove(engine, "begin", hook)
    sa.event.listen(engine, "begin", _on_begin)
    engine.dispose()
    try:
        if engine.url.database not in {None, "", ":memory:"}:
            make_private(str(engine.url.database))
        raw = engine.raw_connection()
        # Set once, as the file keeps the mode. Here, because setting it ignores the busy timeout.
        raw.cursor().execute("PRAGMA journal_mode=WAL")
    except (sqlite3.Error, OSError) as exc:
        raise errors.Misconfigured(
            f"[database] connection names the file {engine.url.database}, which cannot be used: "
            f"{exc}."
        ) from exc
    raw.close()


def make_private(path: str) -> None:
    """Let only this user read and write a database, whatever the umask and the folder.

    SQLite gives new files beside it the same mode. It is opened only if it is new: closing it would
    end the locks that this process has on it.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    for each in (path, f"{path}-wal", f"{path}-shm", f"{path}-journal"):
        with contextlib.suppress(FileNotFoundError):
            pathlib.Path(each).chmod(0o600)


def _on_connect(dbapi_connection: Any, _record: Any) -> None:
    cursor = dbapi_connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _on_begin(connection: sa.Connection) -> None:
    if "in_transaction" in connection.info:
        return
    immediate = connection.get_execution_options().get(WRITER, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
    connection.info["in_transaction"] = True
