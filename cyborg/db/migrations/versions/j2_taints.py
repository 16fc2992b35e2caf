# SPDX-License-Identifier: Apache-2.0
"""Devices and hosts that are kept from guests whose profile does not tolerate it."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "j2"
down_revision = "j1"
branch_labels = None
depends_on = None


def _flag() -> sa.Column[bool]:
    return sa.Column("tainted", sa.Boolean(), nullable=False, server_default=sa.false())


def upgrade() -> None:
    """Add the columns; nothing is tainted."""
    text = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), "mysql", "mariadb")
    for table in ("hosts", "devices"):
        op.add_column(table, _flag())
        op.add_column(table, sa.Column("taint_reason", text, nullable=True))
    op.add_column("resource_providers", _flag())
    op.create_index("ix_resource_providers_tainted", "resource_providers", ["tainted"])
