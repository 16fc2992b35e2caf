# SPDX-License-Identifier: Apache-2.0
"""The tables of programming: what has been asked for, and what has become of it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db.models import Base, new_uuid, table_args
from cyborg.db.types import BigId, JsonText, LongText, Sentence, string


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
    #: The function pool that asked for it, which may be gone; null where none did.
    pool_uuid: orm.Mapped[str | None] = orm.mapped_column(string(36), index=True, default=None)
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


class FunctionPool(Base):
    """A wish to have some slots of a function free, which conductors see to."""

    __tablename__ = "function_pools"

    uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True, default=new_uuid)
    name: orm.Mapped[str] = orm.mapped_column(string(200), unique=True)
    description: orm.Mapped[str | None] = orm.mapped_column(LongText, default=None)
    function_id: orm.Mapped[str] = orm.mapped_column(string(255))
    #: The same in the form in which function ids are compared.
    function_plain: orm.Mapped[str] = orm.mapped_column(string(255), index=True)
    #: The image to write; null: the newest of the function.
    image_uuid: orm.Mapped[str | None] = orm.mapped_column(string(36), default=None)
    #: Where: hosts whose name or node is like that, ``*`` being anything; null: everywhere.
    hosts: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: The same as an operand of LIKE, in small letters and with ``!`` as escape.
    hosts_like: orm.Mapped[str | None] = orm.mapped_column(string(510), default=None)
    #: How many slots are to be free, and how many deployables may run the function for that.
    free: orm.Mapped[int] = orm.mapped_column()
    max_devices: orm.Mapped[int] = orm.mapped_column()
    #: Why there are not as many free slots as wanted; null where there are, or soon will be.
    reason: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    #: When a conductor was last told to look at it, by the database's clock.
    looked_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=0)

    traits: orm.Mapped[list[FunctionPoolTrait]] = orm.relationship(
        lazy="raise",
        order_by="FunctionPoolTrait.trait",
        cascade="save-update, merge, delete, delete-orphan",
        passive_deletes=True,
    )


class FunctionPoolTrait(Base):
    """A trait that a deployable must have to be of a pool."""

    __tablename__ = "function_pool_traits"
    __table_args__ = table_args(sa.UniqueConstraint("pool_id", "trait"))

    pool_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey("function_pools.id", ondelete="CASCADE")
    )
    trait: orm.Mapped[str] = orm.mapped_column(string(255))


class FunctionMiss(Base):
    """Slots of a pool's function that somebody looked for in vain, until it is forgotten."""

    __tablename__ = "function_misses"
    __table_args__ = table_args(sa.UniqueConstraint("pool_id", "project_id"))

    # There may be one for each boot that fails.
    id: orm.Mapped[int] = orm.mapped_column(BigId, primary_key=True, autoincrement=True)
    pool_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey("function_pools.id", ondelete="CASCADE"), index=True
    )
    slots: orm.Mapped[int] = orm.mapped_column()
    #: Whose ARQs have shown it; null where somebody has posted it.
    project_id: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: When, by the database's clock.
    at_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=db.now_ms())
