# SPDX-License-Identifier: Apache-2.0
"""When allocations were last read, and which ARQs have none."""

import sqlalchemy as sa
from alembic import op

revision = "h1"
down_revision = "g1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both; each host is due at once."""
    op.add_column(
        "hosts",
        sa.Column("allocations_ms", sa.BigInteger(), nullable=False, server_default="0"),
    )
    op.add_column("arqs", sa.Column("allocation_missed_ms", sa.BigInteger(), nullable=True))
