# SPDX-License-Identifier: Apache-2.0
"""What a project has of a kind in the history, by its end."""

from alembic import op

revision = "q1"
down_revision = "o2"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    columns = ["project_id", "kind", "ended_ms"]
    op.create_index("ix_history_project_id_kind_ended_ms", "history", columns)
