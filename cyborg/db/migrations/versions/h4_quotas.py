# SPDX-License-Identifier: Apache-2.0
"""What ARQs count as in quotas, and a lock for each project."""

import json

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "h4"
down_revision = "h3"
branch_labels = None
depends_on = None

_TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _string(length: int) -> sa.String:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


_ARQS = sa.table(
    "arqs",
    sa.column("device_profile_group", sa.Text),
    sa.column("resource_class", sa.String),
)


def upgrade() -> None:
    """Add both; an ARQ of before counts as the first class of its group."""
    op.add_column("arqs", sa.Column("resource_class", _string(255), nullable=True))
    op.create_table(
        "project_locks",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("project_id", _string(255), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_project_locks"),
        sa.UniqueConstraint("project_id", name="uq_project_locks_project_id"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    connection = op.get_bind()
    group = _ARQS.c.device_profile_group
    # There are few groups, however many ARQs.
    for (text,) in connection.execute(sa.select(group).distinct()).all():
        keys = (key.partition(":") for key in json.loads(text))
        found = [name for kind, _, name in keys if kind == "resources"]
        if found:
            which = _ARQS.update().where(group == text)
            connection.execute(which.values(resource_class=found[0]))
