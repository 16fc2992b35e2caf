# SPDX-License-Identifier: Apache-2.0
"""The schema of the first release. It is amended here until that is tagged, and never afterwards.

So it says what it makes by itself, and takes nothing from the models.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "18.0.0"
down_revision = None
branch_labels = None
depends_on = None

_MYSQL = ("mysql", "mariadb")
_TIMESTAMP = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
_LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), *_MYSQL)
_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

_Columns = list[sa.Column[Any]]
_Default = str | sa.ColumnElement[bool] | None


def _table(
    name: str,
    *columns: _Columns,
    unique: Sequence[str] = (),
    refers: Mapping[str, str] | None = None,
    belongs: Mapping[str, str] | None = None,
    index: Sequence[str] = (),
    id_type: sa.types.TypeEngine[int] | None = None,
) -> None:
    """Create a table: what is unique or has an index is columns with a blank between them.

    ``refers`` and ``belongs`` are columns with the table of the row that they name, with which
    goes what belongs to it.
    """
    keys = [
        sa.ForeignKeyConstraint(
            [column], [f"{target}.id"], name=f"fk_{name}_{column}", ondelete=ondelete
        )
        for found, ondelete in ((refers, None), (belongs, "CASCADE"))
        for column, target in (found or {}).items()
    ]
    op.create_table(
        name,
        sa.Column("id", id_type or sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("created_at", _TIMESTAMP, nullable=False),
        sa.Column("updated_at", _TIMESTAMP, nullable=True),
        *(column for some in columns for column in some),
        sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
        *(sa.UniqueConstraint(*each.split(), name=_named("uq", name, each)) for each in unique),
        *keys,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )
    for each in index:
        op.create_index(_named("ix", name, each), name, each.split())


def _named(kind: str, table: str, columns: str) -> str:
    return "_".join([kind, table, *columns.split()])


def _columns(
    kind: sa.types.TypeEngine[Any], names: Sequence[str], *, null: bool, default: _Default = None
) -> _Columns:
    return [sa.Column(name, kind, nullable=null, server_default=default) for name in names]


def _text(length: int, *names: str, null: bool = False, default: _Default = None) -> _Columns:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    kind = sa.String(length).with_variant(exact, *_MYSQL)
    return _columns(kind, names, null=null, default=default)


def _long(*names: str, null: bool = False) -> _Columns:
    return _columns(_LONG_TEXT, names, null=null)


def _integer(*names: str, null: bool = False, default: _Default = None) -> _Columns:
    return _columns(sa.Integer(), names, null=null, default=default)


def _big(*names: str, null: bool = False, default: _Default = None) -> _Columns:
    return _columns(sa.BigInteger(), names, null=null, default=default)


def _flag(*names: str, default: _Default = None) -> _Columns:
    return _columns(sa.Boolean(), names, null=False, default=default)


def upgrade() -> None:
    """Create every table, those that others refer to first."""
    _create_hosts()
    _create_devices()
    _create_deployables()
    _create_parts()
    _create_profiles()
    _create_requests()
    _create_operations()
    _create_pools()
    _create_work()
    _create_records()


def _create_hosts() -> None:
    _table(
        "hosts",
        _text(36, "uuid"),
        _text(20, "managed_by", default="agent"),
        _text(255, "name", "node"),
        _big("report_started", "report_counter"),
        _text(64, "report_digest", "lacked", null=True),
        _big("last_seen_ms", "audited_ms", "allocations_ms", default="0"),
        _long("driver_errors"),
        _long("refused", null=True),
        _text(20, "refused_code", null=True),
        _big("refused_ms", null=True),
        _integer("not_offered", null=True),
        _long("not_offered_reasons", "readings", null=True),
        _flag("down", "drained", "tainted", "removed", default=sa.false()),
        _long("drain_reason", "taint_reason", null=True),
        _big("drained_ms", null=True),
        unique=["uuid", "name"],
        index=["node"],
    )
    _table(
        "host_keys",
        _text(255, "host_name"),
        _text(64, "fingerprint"),
        _text(255, "public_key"),
        _big("revoked_ms", "used_ms", null=True),
        _big("counter", "seen", default="0"),
        unique=["fingerprint"],
        index=["host_name"],
    )
    _table(
        "conductors",
        _text(36, "uuid"),
        _text(255, "name", "host"),
        _big("last_seen_ms"),
        unique=["uuid", "name"],
    )
    _table(
        "resource_providers",
        _text(36, "uuid"),
        _text(255, "name"),
        _integer("host_id"),
        _integer("generation", null=True),
        _long("written"),
        _flag("tainted", default=sa.false()),
        _long("withheld", null=True),
        _big("detached_ms", null=True),
        unique=["uuid"],
        refers={"host_id": "hosts"},
        index=["host_id", "tainted"],
    )


def _create_devices() -> None:
    _table(
        "devices",
        _text(36, "uuid"),
        _integer("host_id"),
        _text(100, "driver"),
        _text(30, "type", "status"),
        _text(255, "vendor", "model"),
        _long("std_board_info", "vendor_board_info", "identity", null=True),
        _long("disabled_reason", "taint_reason", "unhealthy", null=True),
        _flag("tainted", default=sa.false()),
        _flag("missing"),
        _big("kept_until_ms", null=True),
        unique=["uuid"],
        refers={"host_id": "hosts"},
        index=["host_id", "kept_until_ms"],
    )
    _table(
        "control_paths",
        _text(36, "uuid"),
        _integer("host_id", "device_id"),
        _text(30, "cpid_type"),
        _text(255, "cpid_info"),
        unique=["uuid", "device_id", "host_id cpid_type cpid_info"],
        refers={"host_id": "hosts", "device_id": "devices"},
    )


def _create_deployables() -> None:
    _table(
        "deployables",
        _text(36, "uuid", "rp_uuid"),
        _integer("device_id", "num_accelerators"),
        _integer("parent_id", "root_id", null=True),
        _text(255, "name"),
        _text(100, "driver_name"),
        _text(20, "program_mode", "shared", null=True),
        _text(50, "function_vendor", default=""),
        _text(36, "bitstream_id", null=True),
        _long("bitstream", null=True),
        _text(255, "function_id", "function_plain", "function_name", "function_shown", null=True),
        _big("programmed_ms", null=True),
        _text(255, "programmed_by", "verified_by", null=True),
        _text(20, "program_state", default="unmanaged"),
        _flag("clean_erases", default=sa.false()),
        _flag("prepares", "cleans", "missing"),
        _text(255, "blank_image", null=True),
        unique=["uuid", "name", "rp_uuid"],
        refers={"device_id": "devices", "parent_id": "deployables", "root_id": "deployables"},
        index=["device_id", "parent_id", "root_id", "function_plain"],
    )


def _create_parts() -> None:
    _table(
        "attributes",
        _text(36, "uuid"),
        _integer("deployable_id"),
        _text(255, "key"),
        _long("value"),
        _text(10, "origin"),
        unique=["uuid", "deployable_id key"],
        refers={"deployable_id": "deployables"},
    )
    _table(
        "attach_handles",
        _text(36, "uuid"),
        _integer("deployable_id"),
        _text(30, "attach_type"),
        _text(255, "attach_info"),
        _flag("missing"),
        _text(20, "state", default="clean"),
        _flag("needs_write", default=sa.false()),
        _big("left_ms", null=True),
        _long("left_reason", "left_by", null=True),
        _text(36, "left_arq", "left_consumer", null=True),
        _text(255, "left_project", "left_profile", "left_host", null=True),
        _columns(_TIMESTAMP, ["left_created_at"], null=True),
        unique=["uuid", "deployable_id attach_info"],
        refers={"deployable_id": "deployables"},
        index=["left_arq"],
    )


def _create_profiles() -> None:
    _table(
        "device_profiles",
        _text(36, "uuid"),
        _text(255, "name"),
        _long("description", "extra", null=True),
        _long("groups"),
        _text(10, "visibility", default="public"),
        _flag("enabled", default=sa.true()),
        unique=["uuid", "name"],
    )
    _table(
        "device_profile_projects",
        _integer("profile_id"),
        _text(255, "project_id"),
        unique=["profile_id project_id"],
        belongs={"profile_id": "device_profiles"},
    )


def _create_requests() -> None:
    _table(
        "arqs",
        _text(36, "uuid"),
        _text(255, "project_id", "resource_class", "hostname", "access_key", null=True),
        _text(223, "consumer_nqn", null=True),
        _text(30, "state"),
        _long("state_reason", "private_reason", null=True),
        _text(255, "device_profile_name"),
        _integer("device_profile_group_id"),
        _long("device_profile_group"),
        _text(36, "device_profile_uuid", "device_rp_uuid", null=True),
        _text(36, "consumer_uuid", "allocation_uuid", null=True),
        _big("instance_asked_ms", "instance_missed_ms", "allocation_missed_ms", null=True),
        _big("bind_started_ms", null=True),
        _flag("needs_write", default=sa.false()),
        _integer("attach_handle_id", null=True),
        unique=["uuid", "attach_handle_id"],
        refers={"attach_handle_id": "attach_handles"},
        index=[
            *("project_id", "state", "device_rp_uuid", "consumer_uuid", "instance_asked_ms"),
            *("device_profile_uuid", "allocation_uuid"),
        ],
    )
    _table(
        "allocations",
        _text(36, "uuid"),
        _text(255, "project_id", "user_id"),
        _text(100, "consumer_type"),
        _text(255, "consumer_name", null=True),
        _text(20, "state"),
        _long("state_reason", "private_reason", null=True),
        _text(20, "reason_code", null=True),
        _long("request", "plan"),
        _integer("alternative", "accelerators"),
        _integer("lease_seconds", null=True),
        _big("lease_ms", null=True),
        unique=["uuid"],
        index=["project_id", "state", "lease_ms"],
    )


def _create_operations() -> None:
    _table(
        "operations",
        _text(36, "uuid", "deployable_uuid"),
        _text(36, "active", "image_uuid", "consumer_uuid", "pool_uuid", null=True),
        _text(20, "state"),
        _text(20, "fault", null=True),
        _text(255, "image_name", "function_id", "function_name", null=True),
        _text(255, "asked_by"),
        _long("error", "image", null=True),
        _long("history"),
        _integer("writes", default="0"),
        _big("asked_ms"),
        _big("ended_ms", null=True),
        unique=["uuid", "active"],
        index=["deployable_uuid", "consumer_uuid", "ended_ms", "pool_uuid"],
    )


def _create_pools() -> None:
    _table(
        "function_pools",
        _text(36, "uuid"),
        _text(200, "name"),
        _long("description", "reason", null=True),
        _text(20, "reason_code", null=True),
        _text(255, "function_id", "function_plain"),
        _text(36, "image_uuid", null=True),
        _text(255, "hosts", null=True),
        _text(510, "hosts_like", null=True),
        _integer("free", "max_devices"),
        _big("looked_ms"),
        unique=["uuid", "name"],
        index=["function_plain"],
    )
    _table(
        "function_pool_traits",
        _integer("pool_id"),
        _text(255, "trait"),
        unique=["pool_id trait"],
        belongs={"pool_id": "function_pools"},
    )
    _table(
        "function_misses",
        _integer("pool_id", "slots"),
        _text(255, "project_id", null=True),
        _big("at_ms"),
        unique=["pool_id project_id"],
        belongs={"pool_id": "function_pools"},
        index=["pool_id"],
        id_type=_BIG_ID,
    )


def _create_work() -> None:
    _table(
        "work",
        _text(30, "kind"),
        _text(255, "key"),
        _integer("wanted", "attempts"),
        _big("wanted_ms", "due_ms"),
        _text(255, "owner", null=True),
        _big("lease_ms", null=True),
        _long("last_error", null=True),
        _text(20, "error_code", null=True),
        _text(64, "request_id", null=True),
        unique=["kind key"],
        index=["owner"],
        id_type=_BIG_ID,
    )
    op.create_index("ix_work_due", "work", ["due_ms"])
    _table("brakes", _text(30, "name"), _big("began_ms"), _integer("used"), unique=["name"])
    _table(
        "project_locks",
        _text(255, "project_id"),
        _big("quota_noticed_ms", null=True),
        _big("locks", default="0"),
        unique=["project_id"],
    )


def _create_records() -> None:
    _table(
        "history",
        _text(36, "uuid"),
        _text(20, "kind"),
        _text(36, "device_uuid", "handle_uuid", "consumer_uuid", "arq_uuid", null=True),
        _text(36, "image_uuid", null=True),
        _text(255, "resource_class", "project_id", "hostname", "function_id", null=True),
        _text(255, "actor", null=True),
        _long("reason", "private_reason", null=True),
        _big("started_ms"),
        _big("ended_ms", null=True),
        unique=["uuid"],
        index=[
            *("device_uuid", "project_id", "consumer_uuid", "arq_uuid", "ended_ms"),
            "project_id kind ended_ms",
        ],
        id_type=_BIG_ID,
    )
    _table(
        "notifications",
        _text(36, "uuid"),
        _text(100, "event_type"),
        _text(10, "priority"),
        _big("occurred_ms"),
        _text(64, "request_id", null=True),
        _long("payload"),
        id_type=_BIG_ID,
    )
    _table(
        "made_names",
        _text(300, "path"),
        _text(255, "host_name", null=True),
        _flag("made"),
        _big("due_ms"),
        unique=["path"],
        index=["host_name", "due_ms"],
    )
