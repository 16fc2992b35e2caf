# SPDX-License-Identifier: Apache-2.0
"""What code decides by is no part of a sentence any more, and reasons have a public one beside."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "w1"
down_revision = "v2"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. What was stored before has no code: it is looked at once more."""
    exact = mysql.VARCHAR(20, charset="utf8mb4", collation="utf8mb4_bin")
    code = sa.String(20).with_variant(exact, "mysql", "mariadb")
    exact = mysql.VARCHAR(64, charset="utf8mb4", collation="utf8mb4_bin")
    digest = sa.String(64).with_variant(exact, "mysql", "mariadb")
    op.add_column("hosts", sa.Column("lacked", digest, nullable=True))
    op.add_column("hosts", sa.Column("refused_code", code, nullable=True))
    op.add_column("function_pools", sa.Column("reason_code", code, nullable=True))
    op.add_column("work", sa.Column("error_code", code, nullable=True))
