# SPDX-License-Identifier: Apache-2.0
"""Requests whose deployable was to be programmed for them."""

import sqlalchemy as sa
from alembic import op

revision = "n1"
down_revision = "m1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of handles that were given out already it is not known."""
    op.add_column(
        "arqs",
        sa.Column("needs_write", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
