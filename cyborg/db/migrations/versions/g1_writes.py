# SPDX-License-Identifier: Apache-2.0
"""How many writes an operation has ordered."""

import sqlalchemy as sa
from alembic import op

revision = "g1"
down_revision = "f1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add it; conductors of before do not count theirs, and do not tell hosts a number."""
    op.add_column(
        "operations", sa.Column("writes", sa.Integer(), nullable=False, server_default="0")
    )
