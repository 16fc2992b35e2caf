# SPDX-License-Identifier: Apache-2.0
"""The release after the next has no description of a profile any more."""

from alembic import op

revision = "contract"
down_revision = "expand"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the description, which no service reads since the release before."""
    op.drop_column("device_profiles", "description")
