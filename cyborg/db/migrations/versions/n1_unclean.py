# SPDX-License-Identifier: Apache-2.0
"""Since when the attach handle of a request has waited to be cleaned."""

import sqlalchemy as sa
from alembic import op

revision = "n1"
down_revision = "m1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of handles that wait already it is not known since when."""
    op.add_column("arqs", sa.Column("unclean_ms", sa.BigInteger(), nullable=True))
