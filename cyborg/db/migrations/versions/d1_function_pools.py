# SPDX-License-Identifier: Apache-2.0
"""Function pools, the misses that let them grow, and function ids as they are compared."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "d1"
down_revision = "c1"
branch_labels = None
depends_on = None

_MYSQL = ("mysql", "mariadb")
_TIMESTAMP = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
_LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), *_MYSQL)
_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _string(length: int) -> sa.String:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, *_MYSQL)


def _create(name: str, id_type: sa.types.TypeEngine[int], *parts: sa.schema.SchemaItem) -> None:
    op.create_table(
        name,
        sa.Column("id", id_type, autoincrement=True, nullable=False),
        sa.Column("created_at", _TIMESTAMP, nullable=False),
        sa.Column("updated_at", _TIMESTAMP, nullable=True),
        *parts,
        sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
    )


def _of_pool(table: str) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_pool_id"
    return sa.ForeignKeyConstraint(["pool_id"], ["function_pools.id"], name, ondelete="CASCADE")


def upgrade() -> None:
    """Add the tables; what runs already is found by pools too."""
    op.add_column("deployables", sa.Column("function_plain", _string(255), nullable=True))
    op.execute("UPDATE deployables SET function_plain = UPPER(REPLACE(function_id, '-', ''))")
    op.create_index("ix_deployables_function_plain", "deployables", ["function_plain"])
    op.add_column("deployables", sa.Column("bitstream", _LONG_TEXT, nullable=True))
    op.add_column("operations", sa.Column("pool_uuid", _string(36), nullable=True))
    op.create_index("ix_operations_pool_uuid", "operations", ["pool_uuid"])
    _create(
        "function_pools",
        sa.Integer(),
        sa.Column("uuid", _string(36), nullable=False),
        sa.Column("name", _string(200), nullable=False),
        sa.Column("description", _LONG_TEXT, nullable=True),
        sa.Column("function_id", _string(255), nullable=False),
        sa.Column("function_plain", _string(255), nullable=False),
        sa.Column("image_uuid", _string(36), nullable=True),
        sa.Column("hosts", _string(255), nullable=True),
        sa.Column("hosts_like", _string(510), nullable=True),
        sa.Column("free", sa.Integer(), nullable=False),
        sa.Column("max_devices", sa.Integer(), nullable=False),
        sa.Column("reason", _LONG_TEXT, nullable=True),
        sa.Column("looked_ms", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("uuid", name="uq_function_pools_uuid"),
        sa.UniqueConstraint("name", name="uq_function_pools_name"),
    )
    op.create_index("ix_function_pools_function_plain", "function_pools", ["function_plain"])
    _create(
        "function_pool_traits",
        sa.Integer(),
        sa.Column("pool_id", sa.Integer(), nullable=False),
        sa.Column("trait", _string(255), nullable=False),
        _of_pool("function_pool_traits"),
        sa.UniqueConstraint("pool_id", "trait", name="uq_function_pool_traits_pool_id_trait"),
    )
    _create(
        "function_misses",
        _BIG_ID,
        sa.Column("pool_id", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("project_id", _string(255), nullable=True),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        _of_pool("function_misses"),
        sa.UniqueConstraint(
            "pool_id", "project_id", name="uq_function_misses_pool_id_project_id"
        ),
    )
    op.create_index("ix_function_misses_pool_id", "function_misses", ["pool_id"])
