# SPDX-License-Identifier: Apache-2.0
"""How often what destroys was done of late."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "o2"
down_revision = "p2"
branch_labels = None
depends_on = None

_MYSQL = ("mysql", "mariadb")
_TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL)


def _string(length: int) -> sa.String:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, *_MYSQL)


def upgrade() -> None:
    """Add the table; nothing was done yet."""
    op.create_table(
        "brakes",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("name", _string(30), nullable=False),
        sa.Column("began_ms", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.Integer(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_brakes"),
        sa.UniqueConstraint("name", name="uq_brakes_name"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
