# SPDX-License-Identifier: Apache-2.0
"""Profiles that are disabled, their further descriptions, and which ARQs were made of them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "j1"
down_revision = "k1"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), "mysql", "mariadb")


def _string(length: int) -> sa.String:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


_PROFILES = sa.table("device_profiles", sa.column("uuid"), sa.column("name"))
_ARQS = sa.table("arqs", sa.column("device_profile_name"), sa.column("device_profile_uuid"))


def upgrade() -> None:
    """Add the columns; an ARQ of before was made of the profile that has its name now."""
    op.add_column(
        "device_profiles",
        sa.Column("enabled", sa.Boolean(), nullable=False, server_default=sa.true()),
    )
    op.add_column("device_profiles", sa.Column("extra", _TEXT, nullable=True))
    op.add_column("arqs", sa.Column("device_profile_uuid", _string(36), nullable=True))
    op.create_index("ix_arqs_device_profile_uuid", "arqs", ["device_profile_uuid"])
    same = sa.select(_PROFILES.c.uuid).where(_PROFILES.c.name == _ARQS.c.device_profile_name)
    unknown = _ARQS.update().where(_ARQS.c.device_profile_uuid.is_(None))
    op.execute(unknown.values(device_profile_uuid=same.scalar_subquery()))
