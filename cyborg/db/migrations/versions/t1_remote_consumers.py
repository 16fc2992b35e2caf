# SPDX-License-Identifier: Apache-2.0
"""How the host of a consumer reaches what it has over a network: its name, and a secret."""

import sqlalchemy as sa
from alembic import op

revision = "t1"
down_revision = "s1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; what was given out so far is for the device's own host, without a key."""
    op.add_column("arqs", sa.Column("consumer_nqn", sa.String(223), nullable=True))
    op.add_column("arqs", sa.Column("access_key", sa.String(255), nullable=True))
