# SPDX-License-Identifier: Apache-2.0
"""The next release calls the description of a profile its note: both are there."""

import sqlalchemy as sa
from alembic import op

revision = "expand"
#: The newest of the project.
down_revision = "18.0.0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the note, and fill it from the description."""
    op.add_column("device_profiles", sa.Column("note", sa.String(255), nullable=True))
    op.create_index("ix_device_profiles_note", "device_profiles", ["note"])
    profiles = sa.table("device_profiles", *map(sa.column, ("note", "description")))
    empty = profiles.update().where(profiles.c.note.is_(None))
    op.execute(empty.values(note=profiles.c.description))
