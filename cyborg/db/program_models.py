# SPDX-License-Identifier: Apache-2.0
"""The tables of programming: what has been asked for, and what has become of it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db.models import Base, new_uuid
from cyborg.db.types import JsonText, Sentence, string


class Operation(Base):
    """A request to program a deployable, and what became of it. It outlives the deployable."""

    __tablename__ = "operations"

    uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True, default=new_uuid)
    deployable_uuid: orm.Mapped[str] = orm.mapped_column(string(36), index=True)
    #: The deployable's uuid until the operation has ended. Unique: one at a time, whatever the
    #: code above does.
    active: orm.Mapped[str | None] = orm.mapped_column(string(36), unique=True, default=None)
    #: One of :mod:`cyborg.programming.operations`; changed by guarded UPDATE only.
    state: orm.Mapped[str] = orm.mapped_column(string(20))
    error: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    #: Which kind of error: ``conflict``, ``invalid`` or ``failed``.
    fault: orm.Mapped[str | None] = orm.mapped_column(string(20), default=None)
    #: What was asked for; one of them at least.
    image_uuid: orm.Mapped[str | None] = orm.mapped_column(string(36), default=None)
    image_name: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    function_id: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    function_name: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: The instance for whose binding it is; null where it is for none.
    instance_uuid: orm.Mapped[str | None] = orm.mapped_column(string(36), index=True, default=None)
    #: Who asked: ``user <id>``, ``instance <uuid>``, ``function pool <name>``, ``recovery``.
    asked_by: orm.Mapped[str] = orm.mapped_column(string(255))
    #: The image that it is carried out with, once that is found: what the host checks it by.
    image: orm.Mapped[dict[str, Any] | None] = orm.mapped_column(JsonText, default=None)
    #: Milliseconds since the epoch by the database's clock.
    asked_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=db.now_ms())
    ended_ms: orm.Mapped[int | None] = orm.mapped_column(
        sa.BigInteger, index=True, default=None
    )
    #: What has happened, in order: ``{"at_ms": milliseconds, "text": sentence}``.
    history: orm.Mapped[list[dict[str, Any]]] = orm.mapped_column(JsonText, default=list)
