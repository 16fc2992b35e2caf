# SPDX-License-Identifier: Apache-2.0
"""What every table has."""

from __future__ import annotations

import datetime
import uuid as uuidlib
from typing import Any

import sqlalchemy as sa
from oslo_utils import timeutils
from sqlalchemy import orm

from cyborg.db.types import Timestamp


def new_uuid() -> str:
    """A random UUID in the form in which all UUIDs are stored."""
    return str(uuidlib.uuid4())


def utcnow() -> datetime.datetime:
    """The present time as it is stored: UTC without a zone."""
    return timeutils.utcnow()


_TABLE_OPTIONS = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}


class Base(orm.DeclarativeBase):
    """Every table counts its rows and knows when each was made and changed."""

    metadata = sa.MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    __table_args__: Any = _TABLE_OPTIONS

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    created_at: orm.Mapped[datetime.datetime] = orm.mapped_column(Timestamp, default=utcnow)
    updated_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        Timestamp, default=None, onupdate=utcnow
    )


def table_args(*constraints: sa.schema.SchemaItem) -> tuple[Any, ...]:
    """What a table has beside its columns."""
    return (*constraints, _TABLE_OPTIONS)
