# SPDX-License-Identifier: Apache-2.0
"""Device profiles may be private to some projects."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "a2"
down_revision = "a1"
branch_labels = None
depends_on = None

_MYSQL = ("mysql", "mariadb")
_TIMESTAMP = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL)


def _string(length: int) -> sa.String:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, *_MYSQL)


def upgrade() -> None:
    """Add the visibility, which is public for what is there, and the list of projects."""
    op.add_column(
        "device_profiles",
        sa.Column("visibility", _string(10), nullable=False, server_default="public"),
    )
    op.create_table(
        "device_profile_projects",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("created_at", _TIMESTAMP, nullable=False),
        sa.Column("updated_at", _TIMESTAMP, nullable=True),
        sa.Column("profile_id", sa.Integer(), nullable=False),
        sa.Column("project_id", _string(255), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_device_profile_projects"),
        sa.UniqueConstraint(
            "profile_id", "project_id", name="uq_device_profile_projects_profile_id_project_id"
        ),
        sa.ForeignKeyConstraint(
            ["profile_id"],
            ["device_profiles.id"],
            name="fk_device_profile_projects_profile_id",
            ondelete="CASCADE",
        ),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
