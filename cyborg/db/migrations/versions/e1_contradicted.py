# SPDX-License-Identifier: Apache-2.0
"""Whether a report has said that a deployable in doubt has lost its program."""

import sqlalchemy as sa
from alembic import op

revision = "e1"
down_revision = "d1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add it; a report that came before is read again when the operation ends."""
    op.add_column(
        "deployables",
        sa.Column("contradicted", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
