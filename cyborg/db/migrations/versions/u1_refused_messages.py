# SPDX-License-Identifier: Apache-2.0
"""Which message in the name of a host was last refused, and when."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "u1"
down_revision = "t1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. What was shown before is among ``driver_errors`` until the next report."""
    text = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), "mysql", "mariadb")
    op.add_column("hosts", sa.Column("refused", text, nullable=True))
    op.add_column("hosts", sa.Column("refused_ms", sa.BigInteger(), nullable=True))
