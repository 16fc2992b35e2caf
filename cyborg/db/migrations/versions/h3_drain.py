# SPDX-License-Identifier: Apache-2.0
"""Why devices are disabled, and which hosts are drained."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "h3"
down_revision = "h2"
branch_labels = None
depends_on = None


def _text() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), "mysql", "mariadb")


def upgrade() -> None:
    """Add the columns; no host is drained."""
    op.add_column("devices", sa.Column("disabled_reason", _text(), nullable=True))
    op.add_column(
        "hosts", sa.Column("drained", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("hosts", sa.Column("drain_reason", _text(), nullable=True))
    op.add_column("hosts", sa.Column("drained_ms", sa.BigInteger(), nullable=True))
