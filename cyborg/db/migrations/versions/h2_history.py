# SPDX-License-Identifier: Apache-2.0
"""Who had which attach handle when, and what happened to devices."""

import uuid
from typing import Any

import sqlalchemy as sa
from alembic import op
from oslo_utils import timeutils
from sqlalchemy.dialects import mysql

from cyborg import db

revision = "h2"
down_revision = "h1"
branch_labels = None
depends_on = None

_TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), "mysql", "mariadb")


def _string(length: int) -> sa.String:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


def upgrade() -> None:
    """Add the table, with what is in use at present."""
    history = op.create_table(
        "history",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("uuid", _string(36), nullable=False),
        sa.Column("kind", _string(20), nullable=False),
        sa.Column("device_uuid", _string(36), nullable=True),
        sa.Column("handle_uuid", _string(36), nullable=True),
        sa.Column("resource_class", _string(255), nullable=True),
        sa.Column("project_id", _string(255), nullable=True),
        sa.Column("instance_uuid", _string(36), nullable=True),
        sa.Column("arq_uuid", _string(36), nullable=True),
        sa.Column("hostname", _string(255), nullable=True),
        sa.Column("image_uuid", _string(36), nullable=True),
        sa.Column("function_id", _string(255), nullable=True),
        sa.Column("reason", _TEXT, nullable=True),
        sa.Column("plain", _string(255), nullable=True),
        sa.Column("actor", _string(255), nullable=True),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_history"),
        sa.UniqueConstraint("uuid", name="uq_history_uuid"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    for column in ("device_uuid", "project_id", "instance_uuid", "arq_uuid", "ended_ms"):
        op.create_index(f"ix_history_{column}", "history", [column])
    connection = op.get_bind()
    rows = [
        {
            **row,
            "uuid": str(uuid.uuid4()),
            "kind": "used",
            "created_at": timeutils.utcnow(),
        }
        for row in connection.execute(_in_use()).mappings()
    ]
    if rows:
        connection.execute(history.insert(), rows)


def _table(name: str, *columns: str) -> sa.TableClause:
    return sa.table(name, *map(sa.column, columns))


def _in_use() -> sa.Select[Any]:
    """A row for each Bound ARQ, since its bind was asked for."""
    arqs = _table(
        "arqs",
        *("uuid", "state", "project_id", "instance_uuid", "hostname"),
        *("bind_started_ms", "attach_handle_id"),
    )
    handles = _table("attach_handles", "id", "uuid", "deployable_id")
    deployables = _table("deployables", "id", "device_id")
    devices = _table("devices", "id", "uuid")
    attribute = _table("attributes", "deployable_id", "key", "value").c
    arq = arqs.c
    rc = sa.select(attribute.value).where(
        attribute.deployable_id == deployables.c.id, attribute.key == "rc"
    )
    return (
        sa.select(
            arq.uuid.label("arq_uuid"),
            arq.project_id,
            arq.instance_uuid,
            arq.hostname,
            handles.c.uuid.label("handle_uuid"),
            devices.c.uuid.label("device_uuid"),
            rc.scalar_subquery().label("resource_class"),
            sa.func.coalesce(arq.bind_started_ms, db.now_ms()).label("started_ms"),
        )
        .select_from(arqs)
        .join(handles, handles.c.id == arq.attach_handle_id)
        .join(deployables, deployables.c.id == handles.c.deployable_id)
        .join(devices, devices.c.id == deployables.c.device_id)
        .where(arq.state == "Bound")
    )
