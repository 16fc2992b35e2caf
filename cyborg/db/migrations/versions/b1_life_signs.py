# SPDX-License-Identifier: Apache-2.0
"""Which conductors and hosts live, the fault of a device, which request wanted a work row.

And what is to be announced.
"""

import uuid

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from cyborg import db

revision = "b1"
down_revision = "a2"
branch_labels = None
depends_on = None

_MYSQL = ("mysql", "mariadb")
_TIMESTAMP = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
_LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), *_MYSQL)


def _string(length: int) -> sa.String:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, *_MYSQL)


def upgrade() -> None:
    """Add what is seen of conductors, hosts and devices; nothing is known of those there are."""
    op.add_column(
        "hosts", sa.Column("down", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    for name in ("last_seen_ms", "audited_ms"):
        op.add_column(
            "hosts", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
        )
    op.add_column(
        "hosts", sa.Column("removed", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("hosts", sa.Column("uuid", _string(36), nullable=True))
    op.create_index("ix_hosts_uuid", "hosts", ["uuid"], unique=True)
    for name in ("instance_asked_ms", "instance_missed_ms"):
        op.add_column("arqs", sa.Column(name, sa.BigInteger(), nullable=True))
    op.create_index("ix_arqs_instance_asked_ms", "arqs", ["instance_asked_ms"])
    op.add_column("devices", sa.Column("unhealthy", _LONG_TEXT, nullable=True))
    op.add_column("work", sa.Column("request_id", _string(64), nullable=True))
    op.create_table(
        "conductors",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("created_at", _TIMESTAMP, nullable=False),
        sa.Column("updated_at", _TIMESTAMP, nullable=True),
        sa.Column("uuid", _string(36), nullable=False),
        sa.Column("name", _string(255), nullable=False),
        sa.Column("host", _string(255), nullable=False),
        sa.Column("last_seen_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_conductors"),
        sa.UniqueConstraint("uuid", name="uq_conductors_uuid"),
        sa.UniqueConstraint("name", name="uq_conductors_name"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    op.create_table(
        "notifications",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("created_at", _TIMESTAMP, nullable=False),
        sa.Column("updated_at", _TIMESTAMP, nullable=True),
        sa.Column("uuid", _string(36), nullable=False),
        sa.Column("event_type", _string(100), nullable=False),
        sa.Column("priority", _string(10), nullable=False),
        sa.Column("occurred_ms", sa.BigInteger(), nullable=False),
        sa.Column("request_id", _string(64), nullable=True),
        sa.Column("payload", _LONG_TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_notifications"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    _fill()


def _fill() -> None:
    """Give the hosts there are their uuids and a last sign, and ask Nova for every instance."""
    connection = op.get_bind()
    hosts = sa.table("hosts", sa.column("id"), sa.column("uuid"), sa.column("last_seen_ms"))
    for (row_id,) in connection.execute(sa.select(hosts.c.id)).all():
        values = {"uuid": str(uuid.uuid4()), "last_seen_ms": db.now_ms()}
        connection.execute(hosts.update().where(hosts.c.id == row_id).values(values))
    op.drop_column("hosts", "last_seen")
    arqs = sa.table("arqs", sa.column("instance_uuid"), sa.column("instance_asked_ms"))
    asked = arqs.update().where(arqs.c.instance_uuid.is_not(None)).values(instance_asked_ms=0)
    connection.execute(asked)
