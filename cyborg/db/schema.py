# SPDX-License-Identifier: Apache-2.0
"""Schema revisions: one alembic history for SQLite, MariaDB, MySQL and PostgreSQL."""

from __future__ import annotations

import pathlib

import alembic.autogenerate
import alembic.command
import alembic.config
import alembic.migration
import alembic.script
import sqlalchemy as sa

from cyborg import db
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
