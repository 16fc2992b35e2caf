# SPDX-License-Identifier: Apache-2.0
"""What deployables run, the operations that program them, and whose cleaning erases."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "c1"
down_revision = "b1"
branch_labels = None
depends_on = None

_MYSQL = ("mysql", "mariadb")
_TIMESTAMP = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
_LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), *_MYSQL)


def _string(length: int) -> sa.String:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, *_MYSQL)


def upgrade() -> None:
    """Add what is known of programs; nothing is known of the deployables there are."""
    op.add_column("deployables", sa.Column("program_mode", _string(20), nullable=True))
    for name in ("function_id", "function_name", "programmed_by", "verified_by"):
        op.add_column("deployables", sa.Column(name, _string(255), nullable=True))
    op.add_column(
        "deployables",
        sa.Column("function_vendor", _string(50), nullable=False, server_default=""),
    )
    op.add_column("deployables", sa.Column("programmed_ms", sa.BigInteger(), nullable=True))
    for name in ("in_doubt", "clean_erases"):
        op.add_column(
            "deployables",
            sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false()),
        )
    op.create_table(
        "operations",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("created_at", _TIMESTAMP, nullable=False),
        sa.Column("updated_at", _TIMESTAMP, nullable=True),
        sa.Column("uuid", _string(36), nullable=False),
        sa.Column("deployable_uuid", _string(36), nullable=False),
        sa.Column("active", _string(36), nullable=True),
        sa.Column("state", _string(20), nullable=False),
        sa.Column("error", _LONG_TEXT, nullable=True),
        sa.Column("fault", _string(20), nullable=True),
        sa.Column("image_uuid", _string(36), nullable=True),
        sa.Column("image_name", _string(255), nullable=True),
        sa.Column("function_id", _string(255), nullable=True),
        sa.Column("function_name", _string(255), nullable=True),
        sa.Column("instance_uuid", _string(36), nullable=True),
        sa.Column("asked_by", _string(255), nullable=False),
        sa.Column("image", _LONG_TEXT, nullable=True),
        sa.Column("asked_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("history", _LONG_TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_operations"),
        sa.UniqueConstraint("uuid", name="uq_operations_uuid"),
        sa.UniqueConstraint("active", name="uq_operations_active"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    for name in ("deployable_uuid", "instance_uuid", "ended_ms"):
        op.create_index(f"ix_operations_{name}", "operations", [name])
