# SPDX-License-Identifier: Apache-2.0
"""Which traits and resource classes Cyborg has made in Placement, and for which host."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "v2"
down_revision = "u1"
branch_labels = None
depends_on = None

_MYSQL = ("mysql", "mariadb")
_TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL)


def _string(length: int) -> sa.String:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, *_MYSQL)


def upgrade() -> None:
    """Add the table. Who made what there is already is not known, so that stays."""
    op.create_table(
        "made_names",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("path", _string(300), nullable=False),
        sa.Column("host_name", _string(255), nullable=True),
        sa.Column("due_ms", sa.BigInteger(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_made_names"),
        sa.UniqueConstraint("path", name="uq_made_names_path"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    op.create_index("ix_made_names_host_name", "made_names", ["host_name"])
    op.create_index("ix_made_names_due_ms", "made_names", ["due_ms"])
