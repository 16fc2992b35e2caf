# SPDX-License-Identifier: Apache-2.0
"""Which conductors and hosts live, what ails a device, and which request wanted a work row."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "b1"
down_revision = "a2"
branch_labels = None
depends_on = None

_MYSQL = ("mysql", "mariadb")
_TIMESTAMP = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
_LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), *_MYSQL)


def _string(length: int) -> sa.String:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, *_MYSQL)


def upgrade() -> None:
    """Add what is seen of conductors, hosts and devices; nothing is known of those there are."""
    op.add_column(
        "hosts", sa.Column("down", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("devices", sa.Column("unhealthy", _LONG_TEXT, nullable=True))
    op.add_column("work", sa.Column("request_id", _string(64), nullable=True))
    op.create_table(
        "conductors",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("created_at", _TIMESTAMP, nullable=False),
        sa.Column("updated_at", _TIMESTAMP, nullable=True),
        sa.Column("name", _string(255), nullable=False),
        sa.Column("host", _string(255), nullable=False),
        sa.Column("last_seen_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_conductors"),
        sa.UniqueConstraint("name", name="uq_conductors_name"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
