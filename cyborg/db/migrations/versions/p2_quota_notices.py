# SPDX-License-Identifier: Apache-2.0
"""When it was last announced that a project's quota was exceeded."""

import sqlalchemy as sa
from alembic import op

revision = "p2"
down_revision = "n1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; nothing was announced before."""
    op.add_column("project_locks", sa.Column("quota_noticed_ms", sa.BigInteger(), nullable=True))
