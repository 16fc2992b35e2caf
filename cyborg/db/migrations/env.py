# SPDX-License-Identifier: Apache-2.0
"""How alembic runs our migrations: on the connection it is handed, in one transaction each."""

from alembic import context

from cyborg.db import models
from cyborg.db import resume as _  # noqa: F401 - on MariaDB a killed migration goes on


def run() -> None:
    """Run the migrations on the connection that ``cyborg.db.schema`` put into the config."""
    connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        target_metadata=models.Operation.metadata,
        # SQLite cannot alter a column in place.
        render_as_batch=True,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


run()
