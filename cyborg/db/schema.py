# SPDX-License-Identifier: Apache-2.0
"""Schema revisions: one alembic history for SQLite, MariaDB, MySQL and PostgreSQL."""

from __future__ import annotations

import contextlib
import logging
import pathlib
from collections.abc import Iterator

import alembic.autogenerate
import alembic.command
import alembic.config
import alembic.migration
import alembic.script
import sqlalchemy as sa

from cyborg import db
from cyborg.db import connections, sqlite
from cyborg.db import models as db_models

LOG = logging.getLogger(__name__)

_MYSQL = ("mysql", "mariadb")
#: The lock of whoever changes the schema: of the whole server, so it has the database's name. Other
#: nodes of a Galera cluster do not know it, nor would they a lock on a row.
_MYSQL_LOCK = sa.func.sha1(sa.func.concat("cyborg schema ", sa.func.database()))
_POSTGRESQL_LOCK = 7_236_113_905
_WAIT_SECONDS = 60

_SCRIPTS = pathlib.Path(__file__).parent / "migrations"
#: Folders of further revisions: tests have some that come after the newest.
FURTHER: list[str] = []


def _config() -> alembic.config.Config:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    if FURTHER:
        folders = [str(_SCRIPTS / "versions"), *FURTHER]
        config.set_main_option("path_separator", "newline")
        config.set_main_option("version_locations", "\n".join(folders))
    return config


@contextlib.contextmanager
def _alone() -> Iterator[sa.Connection]:
    """A connection in a transaction, while no other process changes the schema."""
    with db.engine().connect() as connection:
        # SQLite has one writer at a time.
        connection.execution_options(**{sqlite.WRITER: True})
        with _mysql_lock(connection), connection.begin():
            if connection.dialect.name == "postgresql":
                # Of this transaction alone.
                connection.execute(sa.text("SET LOCAL lock_timeout = 0"))
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POSTGRESQL_LOCK)))
            yield connection


@contextlib.contextmanager
def _mysql_lock(connection: sa.Connection) -> Iterator[None]:
    """Have the lock, if the server is MariaDB or MySQL, until after the COMMIT of the block.

    It belongs to the connection, not to the transaction as that of PostgreSQL.
    """
    if connection.dialect.name not in _MYSQL:
        yield
        return
    while not connection.scalar(sa.select(sa.func.get_lock(_MYSQL_LOCK, _WAIT_SECONDS))):
        LOG.warning("Another process is changing the schema; waiting for it")
    # A table that is altered is waited for, as it is by any other client of the server.
    connection.execute(_set_waits("DEFAULT"))
    connection.commit()
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.execute(_set_waits(connections.LOCK_WAIT_SECONDS))
            connection.execute(sa.select(sa.func.release_lock(_MYSQL_LOCK)))


def _set_waits(value: object) -> sa.TextClause:
    waits = (f"SESSION {name} = {value}" for name in connections.MYSQL_WAITS)
    return sa.text(f"SET {', '.join(waits)}")


@db.retry_for_long
def upgrade(revision: str = "head") -> None:
    """Upgrade the database to ``revision``; do nothing if it has that already.

    Another upgrade at the same time is waited for. If a service at work changes the rows that a
    migration fills, the upgrade goes on where it lost, as after a kill.
    """
    with _alone() as connection:
        config = _config()
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, revision)


def stamp(revision: str) -> None:
    """Record ``revision`` as the database's without changing any table."""
    with _alone() as connection:
        config = _config()
        config.attributes["connection"] = connection
        alembic.command.stamp(config, revision)


def knows(revision: str) -> bool:
    """Whether this code knows ``revision``, and so can upgrade a database from it."""
    script = alembic.script.ScriptDirectory.from_config(_config())
    return revision in {known.revision for known in script.walk_revisions()}


def head() -> str | None:
    """The newest revision this code knows."""
    return alembic.script.ScriptDirectory.from_config(_config()).get_current_head()


def new_revision(message: str, *, autogenerate: bool) -> None:
    """Write the module of a new revision, for developers."""
    with db.engine().begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        alembic.command.revision(config, message, autogenerate=autogenerate)


def differences(connection: sa.Connection) -> list[object]:
    """The differences between the database's tables and the models; empty if they agree."""
    context = alembic.migration.MigrationContext.configure(
        connection, opts={"compare_type": True}
    )
    return list(alembic.autogenerate.compare_metadata(context, db_models.Operation.metadata))
