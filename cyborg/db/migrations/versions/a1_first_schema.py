# SPDX-License-Identifier: Apache-2.0
"""The first schema."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "a1"
down_revision = None
branch_labels = None
depends_on = None

_MYSQL = ("mysql", "mariadb")
_TIMESTAMP = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), *_MYSQL)


def _string(length: int) -> sa.String:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, *_MYSQL)


def _table(
    name: str, *items: sa.schema.SchemaItem, id_type: sa.types.TypeEngine[int] | None = None
) -> None:
    op.create_table(
        name,
        sa.Column("id", id_type or sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("created_at", _TIMESTAMP, nullable=False),
        sa.Column("updated_at", _TIMESTAMP, nullable=True),
        sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
        *items,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )


def _text(name: str, length: int, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, _string(length), nullable=null)


def _unique(table: str, *columns: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(*columns, name=f"uq_{table}_{'_'.join(columns)}")


def _refers(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=f"fk_{table}_{column}")


def _integer(name: str, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer(), nullable=null)


def _milliseconds(name: str, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=null)


def _flag(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Boolean(), nullable=False)


def upgrade() -> None:
    """Create every table."""
    _create_hosts()
    _create_devices()
    _create_deployables()
    _create_requests()
    _create_work()
    for table, column in (
        ("hosts", "node"),
        ("devices", "host_id"),
        ("deployables", "device_id"),
        ("deployables", "parent_id"),
        ("deployables", "root_id"),
        ("resource_providers", "host_id"),
        ("arqs", "project_id"),
        ("arqs", "state"),
        ("arqs", "device_rp_uuid"),
        ("arqs", "instance_uuid"),
        ("work", "owner"),
    ):
        op.create_index(f"ix_{table}_{column}", table, [column])
    op.create_index("ix_work_due", "work", ["due_ms"])


def _create_hosts() -> None:
    _table(
        "hosts",
        _text("name", 255),
        _text("node", 255),
        _milliseconds("report_started"),
        _milliseconds("report_counter"),
        _text("report_digest", 64, null=True),
        sa.Column("last_seen", _TIMESTAMP, nullable=True),
        sa.Column("driver_errors", _TEXT, nullable=False),
        _unique("hosts", "name"),
    )


def _create_devices() -> None:
    _table(
        "devices",
        _text("uuid", 36),
        _integer("host_id"),
        _text("driver", 100),
        _text("type", 30),
        _text("vendor", 255),
        _text("model", 255),
        sa.Column("std_board_info", _TEXT, nullable=True),
        sa.Column("vendor_board_info", _TEXT, nullable=True),
        _text("status", 30),
        _flag("missing"),
        _unique("devices", "uuid"),
        _refers("devices", "host_id", "hosts"),
    )
    _table(
        "control_paths",
        _text("uuid", 36),
        _integer("host_id"),
        _integer("device_id"),
        _text("cpid_type", 30),
        _text("cpid_info", 255),
        _unique("control_paths", "uuid"),
        _unique("control_paths", "device_id"),
        _unique("control_paths", "host_id", "cpid_type", "cpid_info"),
        _refers("control_paths", "host_id", "hosts"),
        _refers("control_paths", "device_id", "devices"),
    )


def _create_deployables() -> None:
    _table(
        "deployables",
        _text("uuid", 36),
        _integer("device_id"),
        _integer("parent_id", null=True),
        _integer("root_id", null=True),
        _text("name", 255),
        _integer("num_accelerators"),
        _text("rp_uuid", 36),
        _text("driver_name", 100),
        _text("bitstream_id", 36, null=True),
        _flag("prepares"),
        _flag("cleans"),
        _flag("missing"),
        _unique("deployables", "uuid"),
        _unique("deployables", "name"),
        _unique("deployables", "rp_uuid"),
        _refers("deployables", "device_id", "devices"),
        _refers("deployables", "parent_id", "deployables"),
        _refers("deployables", "root_id", "deployables"),
    )
    _table(
        "attributes",
        _text("uuid", 36),
        _integer("deployable_id"),
        _text("key", 255),
        sa.Column("value", _TEXT, nullable=False),
        _text("origin", 10),
        _unique("attributes", "uuid"),
        _unique("attributes", "deployable_id", "key"),
        _refers("attributes", "deployable_id", "deployables"),
    )
    _table(
        "attach_handles",
        _text("uuid", 36),
        _integer("deployable_id"),
        _text("attach_type", 30),
        _text("attach_info", 255),
        _flag("missing"),
        _unique("attach_handles", "uuid"),
        _unique("attach_handles", "deployable_id", "attach_info"),
        _refers("attach_handles", "deployable_id", "deployables"),
    )


def _create_requests() -> None:
    _table(
        "device_profiles",
        _text("uuid", 36),
        _text("name", 255),
        sa.Column("description", _TEXT, nullable=True),
        sa.Column("groups", _TEXT, nullable=False),
        _unique("device_profiles", "uuid"),
        _unique("device_profiles", "name"),
    )
    _table(
        "arqs",
        _text("uuid", 36),
        _text("project_id", 255, null=True),
        _text("state", 30),
        sa.Column("state_reason", _TEXT, nullable=True),
        _text("device_profile_name", 255),
        _integer("device_profile_group_id"),
        sa.Column("device_profile_group", _TEXT, nullable=False),
        _text("hostname", 255, null=True),
        _text("device_rp_uuid", 36, null=True),
        _text("instance_uuid", 36, null=True),
        _milliseconds("bind_started_ms", null=True),
        _integer("attach_handle_id", null=True),
        _unique("arqs", "uuid"),
        _unique("arqs", "attach_handle_id"),
        _refers("arqs", "attach_handle_id", "attach_handles"),
    )


def _create_work() -> None:
    _table(
        "resource_providers",
        _text("uuid", 36),
        _text("name", 255),
        _integer("host_id"),
        _integer("generation", null=True),
        sa.Column("written", _TEXT, nullable=False),
        _unique("resource_providers", "uuid"),
        _refers("resource_providers", "host_id", "hosts"),
    )
    _table(
        "work",
        _text("kind", 30),
        _text("key", 255),
        _integer("wanted"),
        _milliseconds("wanted_ms"),
        _milliseconds("due_ms"),
        _integer("attempts"),
        _text("owner", 255, null=True),
        _milliseconds("lease_ms", null=True),
        sa.Column("last_error", _TEXT, nullable=True),
        _unique("work", "kind", "key"),
        id_type=sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
    )
