# SPDX-License-Identifier: Apache-2.0
"""Which schema the database has, as services ask at their start: without Alembic, for its size."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import sqlalchemy as sa
from oslo_db import exception as db_exc

from cyborg import db
from cyborg.common import errors
from cyborg.db import models as db_models

LOG = logging.getLogger(__name__)

#: Alembic's, with one row.
_VERSIONS = sa.table("alembic_version", sa.column("version_num"))


@contextlib.contextmanager
def one_sentence() -> Iterator[None]:
    """Say in one sentence that the database does not answer, for commands that need it.

    :raises Misconfigured: it does not
    """
    try:
        yield
    except (db_exc.DBError, sa.exc.OperationalError) as exc:
        # The driver's message may contain the URL with its password.
        LOG.debug("The database does not answer", exc_info=exc)
        raise errors.Misconfigured(
            f"The database that [database] connection names does not answer ({type(exc).__name__})."
        ) from exc


def version() -> str | None:
    """The revision of the database; None if it has no schema yet."""
    with db.engine().connect() as connection:
        if not sa.inspect(connection).has_table(_VERSIONS.name):
            return None
        found: str | None = connection.scalar(sa.select(_VERSIONS.c.version_num))
        return found


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


def check_newest(newest: str | None) -> None:
    """Check that the schema is of this release, of which the newest revision is given.

    :raises Misconfigured: it is not
    """
    check()
    if version() != newest:
        raise errors.Misconfigured(
            "The schema of the database is not this release's; run `cyborg-dbsync upgrade` first."
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
            "another Cyborg. Name a database of this Cyborg's own in [database] connection, and "
            "run `cyborg-dbsync import` to take over the other one's."
        )


def check_if_reachable() -> None:
    """Check as :func:`check` does; a database that does not answer now passes.

    :raises Misconfigured: the schema is not Cyborg's
    """
    with contextlib.suppress(db_exc.DBError, sa.exc.SQLAlchemyError, *db.LOST_AT_FIRST):
        check()
