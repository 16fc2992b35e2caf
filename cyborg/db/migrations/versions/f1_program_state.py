# SPDX-License-Identifier: Apache-2.0
"""The state of a deployable's program, and what its hardware has shown since it was recorded."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "f1"
down_revision = "e1"
branch_labels = None
depends_on = None


def _string(length: int) -> sa.String:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


_DEPLOYABLES = sa.table(
    "deployables",
    sa.column("uuid", sa.String),
    sa.column("program_mode", sa.String),
    sa.column("bitstream_id", sa.String),
    sa.column("function_id", sa.String),
    sa.column("function_plain", sa.String),
    sa.column("in_doubt", sa.Boolean),
    sa.column("contradicted", sa.Boolean),
    sa.column("program_state", sa.String),
    sa.column("function_shown", sa.String),
)
_OPERATIONS = sa.table(
    "operations",
    sa.column("active", sa.String),
    sa.column("asked_by", sa.String),
    sa.column("state", sa.String),
    sa.column("fault", sa.String),
)


def upgrade() -> None:
    """Add both, and fill them from the columns of before, which conductors of before still use."""
    state = sa.Column("program_state", _string(20), nullable=False, server_default="unmanaged")
    op.add_column("deployables", state)
    op.add_column("deployables", sa.Column("function_shown", _string(255), nullable=True))
    row, now = _DEPLOYABLES.c, _OPERATIONS.c
    recovers = now.asked_by == "recovery"
    runs = sa.or_(row.bitstream_id.is_not(None), row.function_id.is_not(None))
    settled = row.in_doubt.is_(sa.false())
    state_of = sa.case(
        (sa.and_(settled, row.program_mode.is_(None)), "unmanaged"),
        (sa.and_(settled, runs), "loaded"),
        (settled, "blank"),
        (_has(recovers, now.fault.is_not(None)), "damaged"),
        (_has(recovers, now.state == "writing"), "restoring"),
        (_has(~recovers, now.state == "writing"), "writing"),
        (_has(~recovers, now.state == "reserving"), "withdrawn"),
        else_="lost",
    )
    op.execute(_DEPLOYABLES.update().values(program_state=state_of))
    # What a report has shown instead is not known: of what is lost nothing is believed then.
    again = sa.func.coalesce(row.function_plain, "")
    other = sa.case((row.program_state.in_(["withdrawn", "writing"]), ""))
    shown = sa.case((row.contradicted.is_(sa.true()), other), else_=again)
    op.execute(_DEPLOYABLES.update().where(~settled).values(function_shown=shown))


def _has(*where: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Whether the deployable's operation that has not ended is such a one."""
    found = sa.select(_OPERATIONS.c.active).where(
        _OPERATIONS.c.active == _DEPLOYABLES.c.uuid, *where
    )
    return found.correlate(_DEPLOYABLES).exists()
