# SPDX-License-Identifier: Apache-2.0
"""Schema revisions: one alembic history for SQLite, MariaDB, MySQL and PostgreSQL."""

from __future__ import annotations

import contextlib
import pathlib

import alembic.autogenerate
import alembic.command
import alembic.config
import alembic.migration
import alembic.script
import sqlalchemy as sa
from oslo_db import exception as db_exc

from cyborg import db, errors
from cyborg.db import models as db_models


def _config() -> alembic.config.Config:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(pathlib.Path(__file__).parent / "migrations"))
    return config


def upgrade(revision: str = "head") -> None:
    """Upgrade the database to ``revision``; do nothing if it has that already."""
    with db.engine().begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, revision)


def stamp(revision: str) -> None:
    """Record ``revision`` as the database's without changing any table."""
    with db.engine().begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        alembic.command.stamp(config, revision)


def version() -> str | None:
    """The revision of the database; None if it has no schema yet."""
    with db.engine().connect() as connection:
        return alembic.migration.MigrationContext.configure(connection).get_current_revision()


def knows(revision: str) -> bool:
    """Whether this code knows ``revision``, and so can upgrade a database from it."""
    script = alembic.script.ScriptDirectory.from_config(_config())
    return revision in {known.revision for known in script.walk_revisions()}


def check() -> None:
    """Check that the database has a schema of Cyborg's.

    One of a newer release passes: the schema is upgraded while services of this one still run.

    :raises Misconfigured: it has none, or that of another program
    """
    check_not_foreign()
    if version() is None:
        raise errors.Misconfigured(
            "The database has no schema of Cyborg's: run `cyborg-dbsync upgrade` first."
        )


def check_not_foreign() -> None:
    """Check that the schema, if the database has any, is Cyborg's.

    :raises Misconfigured: it is that of another program
    """
    found = version()
    ours = sa.inspect(db.engine()).has_table(db_models.Work.__tablename__)
    if found is not None and not ours:
        raise errors.Misconfigured(
            f"The database has the schema of another program, at revision {found}, perhaps of "
            "another Cyborg: let [database] connection name a database of this Cyborg's own."
        )


def check_if_reachable() -> None:
    """Check as :func:`check` does; a database that does not answer now passes.

    :raises Misconfigured: the schema is not Cyborg's
    """
    with contextlib.suppress(db_exc.DBError, sa.exc.SQLAlchemyError):
        check()


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
