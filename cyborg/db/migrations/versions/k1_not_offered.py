# SPDX-License-Identifier: Apache-2.0
"""How many accelerators of a host no driver offers."""

import sqlalchemy as sa
from alembic import op

revision = "k1"
down_revision = "i1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the next report of a host that says so fills it."""
    op.add_column("hosts", sa.Column("not_offered", sa.Integer(), nullable=True))
