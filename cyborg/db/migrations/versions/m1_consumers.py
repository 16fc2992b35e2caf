# SPDX-License-Identifier: Apache-2.0
"""Allocations of consumers that Nova knows nothing of."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "m1"
down_revision = "l1"
branch_labels = None
depends_on = None

_MYSQL = ("mysql", "mariadb")
_TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
_LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), *_MYSQL)


def _string(length: int) -> sa.String:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, *_MYSQL)


def upgrade() -> None:
    """Add the table; the ARQs that there are belong to instances."""
    op.create_table(
        "allocations",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("uuid", _string(36), nullable=False),
        sa.Column("project_id", _string(255), nullable=False),
        sa.Column("user_id", _string(255), nullable=False),
        sa.Column("consumer_type", _string(100), nullable=False),
        sa.Column("consumer_name", _string(255), nullable=True),
        sa.Column("state", _string(20), nullable=False),
        sa.Column("state_reason", _LONG_TEXT, nullable=True),
        sa.Column("request", _LONG_TEXT, nullable=False),
        sa.Column("alternative", sa.Integer(), nullable=False),
        sa.Column("plan", _LONG_TEXT, nullable=False),
        sa.Column("accelerators", sa.Integer(), nullable=False),
        sa.Column("lease_seconds", sa.Integer(), nullable=True),
        sa.Column("lease_ms", sa.BigInteger(), nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_allocations"),
        sa.UniqueConstraint("uuid", name="uq_allocations_uuid"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    for column in ("project_id", "state", "lease_ms"):
        op.create_index(f"ix_allocations_{column}", "allocations", [column])
    op.add_column("arqs", sa.Column("allocation_uuid", _string(36), nullable=True))
    op.create_index("ix_arqs_allocation_uuid", "arqs", ["allocation_uuid"])
