# SPDX-License-Identifier: Apache-2.0
"""Why nothing of a resource provider is given out."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "i1"
down_revision = "h4"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), "mysql", "mariadb")


def upgrade() -> None:
    """Add the column; what is known already is given out."""
    op.add_column("resource_providers", sa.Column("withheld", _TEXT, nullable=True))
