# SPDX-License-Identifier: Apache-2.0
"""Whose facts those of a host are: its agent's or Ironic's."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "r1"
down_revision = "q1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; all hosts so far are those of agents."""
    exact = mysql.VARCHAR(20, charset="utf8mb4", collation="utf8mb4_bin")
    text = sa.String(20).with_variant(exact, "mysql", "mariadb")
    column = sa.Column("managed_by", text, nullable=False, server_default="agent")
    op.add_column("hosts", column)
