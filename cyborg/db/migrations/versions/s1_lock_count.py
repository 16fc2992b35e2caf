# SPDX-License-Identifier: Apache-2.0
"""How often a project was locked, so that each lock writes something."""

import sqlalchemy as sa
from alembic import op

revision = "s1"
down_revision = "r1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    column = sa.Column("locks", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("project_locks", column)
