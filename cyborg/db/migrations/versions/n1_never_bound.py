# SPDX-License-Identifier: Apache-2.0
"""Requests that hold an attach handle which their guest never had."""

import sqlalchemy as sa
from alembic import op

revision = "n1"
down_revision = "m1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of handles that wait to be cleaned already it is not known."""
    never_bound = sa.Column("never_bound", sa.Boolean(), server_default=sa.false(), nullable=False)
    op.add_column("arqs", never_bound)
