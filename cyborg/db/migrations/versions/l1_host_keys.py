# SPDX-License-Identifier: Apache-2.0
"""The public parts of hosts' keys."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "l1"
down_revision = "k2"
branch_labels = None
depends_on = None

_MYSQL = ("mysql", "mariadb")
_TIMESTAMP = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL)


def _string(length: int) -> sa.String:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, *_MYSQL)


def upgrade() -> None:
    """Add the table; no host has an enrolled key."""
    op.create_table(
        "host_keys",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("created_at", _TIMESTAMP, nullable=False),
        sa.Column("updated_at", _TIMESTAMP, nullable=True),
        sa.Column("host_name", _string(255), nullable=False),
        sa.Column("fingerprint", _string(64), nullable=False),
        sa.Column("public_key", _string(255), nullable=False),
        sa.Column("revoked_ms", sa.BigInteger(), nullable=True),
        sa.Column("counter", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("seen", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("used_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_host_keys"),
        sa.UniqueConstraint("fingerprint", name="uq_host_keys_fingerprint"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    op.create_index("ix_host_keys_host_name", "host_keys", ["host_name"])
