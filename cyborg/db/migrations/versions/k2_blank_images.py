# SPDX-License-Identifier: Apache-2.0
"""Deployables that are overwritten with a blank image between two guests."""

import sqlalchemy as sa
from alembic import op

revision = "k2"
down_revision = "j2"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; nothing is overwritten before a report says so."""
    op.add_column("deployables", sa.Column("blank_image", sa.String(255), nullable=True))
    op.add_column("arqs", sa.Column("left_ms", sa.BigInteger(), nullable=True))
