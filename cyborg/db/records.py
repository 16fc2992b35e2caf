# SPDX-License-Identifier: Apache-2.0
"""The tables of what is to be done, of what has been done, and of what is counted.

They name what they are about, and outlive it: none refers to a row of :mod:`cyborg.db.models`.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db.base import Base, new_uuid, table_args
from cyborg.db.types import BigId, JsonText, LongText, Sentence, string


class ProjectLock(Base):
    """Locked by whoever creates ARQs of a project."""

    __tablename__ = "project_locks"

    project_id: orm.Mapped[str] = orm.mapped_column(string(255), unique=True)
    #: When it was last announced that its quota was exceeded.
    quota_noticed_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, default=None)
    #: How often it was locked. Two nodes of a Galera cluster see the locks of each other by what
    #: they write only.
    locks: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=0, server_default="0")


class Brake(Base):
    """How often something that destroys was done of late; or a lock of what is done one by one.

    One row says of which time some of the history is deleted.
    """

    __tablename__ = "brakes"

    name: orm.Mapped[str] = orm.mapped_column(string(30), unique=True)
    #: When the present period began, by the database's clock, and how often it was done since.
    began_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger)
    used: orm.Mapped[int] = orm.mapped_column()


class MadeName(Base):
    """A trait or resource class that Cyborg makes in Placement, by its path there."""

    __tablename__ = "made_names"
    __table_args__ = table_args(
        sa.Index("ix_made_names_host_name", "host_name"), sa.Index("ix_made_names_due_ms", "due_ms")
    )

    path: orm.Mapped[str] = orm.mapped_column(string(300), unique=True)
    #: The host whose report has it first; null if a request for candidates did.
    host_name: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: False from just before it is made until it is known who has made it.
    made: orm.Mapped[bool] = orm.mapped_column(default=True)
    #: When to look next whether anything names it.
    due_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger)


class Work(Base):
    """Something still to be done outside SQL, written with the change that wants it."""

    __tablename__ = "work"
    __table_args__ = table_args(
        sa.UniqueConstraint("kind", "key"), sa.Index("ix_work_due", "due_ms")
    )

    # Every wish, also one for a row that is there, takes a number on MySQL and PostgreSQL.
    id: orm.Mapped[int] = orm.mapped_column(BigId, primary_key=True, autoincrement=True)
    kind: orm.Mapped[str] = orm.mapped_column(string(30))
    key: orm.Mapped[str] = orm.mapped_column(string(255))
    #: Raised by each wish; a worker may only remove the row at the value it saw.
    wanted: orm.Mapped[int] = orm.mapped_column(default=1)
    #: Milliseconds since the epoch by the database's clock, like every time of this table.
    wanted_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger)
    due_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger)
    attempts: orm.Mapped[int] = orm.mapped_column(default=0)
    owner: orm.Mapped[str | None] = orm.mapped_column(string(255), index=True, default=None)
    lease_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, default=None)
    last_error: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    #: The code of that error, where others decide by it: ``NO_ROOT`` or ``NOT_YET`` of
    #: :mod:`cyborg.work`.
    error_code: orm.Mapped[str | None] = orm.mapped_column(string(20), default=None)
    #: The API request that wanted it last, for the logs of all services.
    request_id: orm.Mapped[str | None] = orm.mapped_column(string(64), default=None)


class Notification(Base):
    """Something that has happened and is still to be announced, written with the change itself.

    One row a notification, with what was true then: unlike a piece of work it cannot be computed
    when it is sent.
    """

    __tablename__ = "notifications"

    # Their order is the order of the changes to one object: each locks the object first.
    id: orm.Mapped[int] = orm.mapped_column(BigId, primary_key=True, autoincrement=True)
    #: The same in every repetition of the message.
    uuid: orm.Mapped[str] = orm.mapped_column(string(36), default=new_uuid)
    event_type: orm.Mapped[str] = orm.mapped_column(string(100))
    priority: orm.Mapped[str] = orm.mapped_column(string(10))
    #: Milliseconds since the epoch by the database's clock.
    occurred_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=db.now_ms())
    #: The API request that made it happen, where one did.
    request_id: orm.Mapped[str | None] = orm.mapped_column(string(64), default=None)
    payload: orm.Mapped[dict[str, Any]] = orm.mapped_column(JsonText)


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
    #: Which kind of error: ``conflict``, ``cancelled``, ``invalid`` or ``failed``.
    fault: orm.Mapped[str | None] = orm.mapped_column(string(20), default=None)
    #: What was asked for; one of them at least.
    image_uuid: orm.Mapped[str | None] = orm.mapped_column(string(36), default=None)
    image_name: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    function_id: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    function_name: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: The instance or allocation for whose binding it is; null if it is for none.
    consumer_uuid: orm.Mapped[str | None] = orm.mapped_column(string(36), index=True, default=None)
    #: The function pool that asked for it, which may be gone; null if none did.
    pool_uuid: orm.Mapped[str | None] = orm.mapped_column(string(36), index=True, default=None)
    #: Who asked: ``user <id>``, ``instance <uuid>``, ``function pool <name>``, ``recovery``,
    #: ``cleaning``.
    asked_by: orm.Mapped[str] = orm.mapped_column(string(255))
    #: The image that it is carried out with, once that is found: what the host checks it by.
    image: orm.Mapped[dict[str, Any] | None] = orm.mapped_column(JsonText, default=None)
    #: How many writes it has ordered, so that a host tells the next one from a repeated question.
    writes: orm.Mapped[int] = orm.mapped_column(default=0, server_default="0")
    #: Milliseconds since the epoch by the database's clock.
    asked_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=db.now_ms())
    ended_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, index=True, default=None)
    #: What has happened, in order: ``{"at_ms": milliseconds, "text": sentence}``. Of who joined it
    #: also ``{"joined": who, "consumer_uuid": who}``; of a wait ``{"waits": true}``.
    history: orm.Mapped[list[dict[str, Any]]] = orm.mapped_column(JsonText, default=list)


class HistoryEntry(Base):
    """Something that began and perhaps ended. It names what it is about, and outlives that."""

    __tablename__ = "history"
    __table_args__ = table_args(
        sa.Index("ix_history_project_id_kind_ended_ms", "project_id", "kind", "ended_ms")
    )

    # One for each bind.
    id: orm.Mapped[int] = orm.mapped_column(BigId, primary_key=True, autoincrement=True)
    uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True, default=new_uuid)
    #: One of :mod:`cyborg.history`.
    kind: orm.Mapped[str] = orm.mapped_column(string(20))
    device_uuid: orm.Mapped[str | None] = orm.mapped_column(string(36), index=True, default=None)
    handle_uuid: orm.Mapped[str | None] = orm.mapped_column(string(36), default=None)
    resource_class: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: Whose it is; null if it is about the device alone.
    project_id: orm.Mapped[str | None] = orm.mapped_column(string(255), index=True, default=None)
    consumer_uuid: orm.Mapped[str | None] = orm.mapped_column(string(36), index=True, default=None)
    arq_uuid: orm.Mapped[str | None] = orm.mapped_column(string(36), index=True, default=None)
    hostname: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: As they are now, or null if they are gone: the profile of the ARQ, and what the handle is.
    profile_name: orm.Mapped[str | None] = orm.query_expression()
    attach_info: orm.Mapped[str | None] = orm.query_expression()
    image_uuid: orm.Mapped[str | None] = orm.mapped_column(string(36), default=None)
    function_id: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: Why.
    reason: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    private_reason: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    #: Who has done it, where that is known: ``user <id>`` and the like.
    actor: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: Milliseconds since the epoch by the database's clock; an end of null is yet to come.
    started_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=db.now_ms())
    ended_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, index=True, default=None)


class FunctionPool(Base):
    """A number of slots of a function that conductors keep free."""

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
    #: Why fewer slots are free than wanted; null if enough are free, or soon will be. By the code
    #: it is known whether that holds until more deployables can be programmed.
    reason: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    reason_code: orm.Mapped[str | None] = orm.mapped_column(string(20), default=None)
    #: When it was last due to be filled, by the database's clock.
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
    """Slots of a pool's function that were wanted and not free. It is deleted after a while."""

    __tablename__ = "function_misses"
    __table_args__ = table_args(sa.UniqueConstraint("pool_id", "project_id"))

    # There may be one for each boot that fails.
    id: orm.Mapped[int] = orm.mapped_column(BigId, primary_key=True, autoincrement=True)
    pool_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey("function_pools.id", ondelete="CASCADE"), index=True
    )
    slots: orm.Mapped[int] = orm.mapped_column()
    #: Whose ARQs have shown it; null if it was posted.
    project_id: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: When, by the database's clock.
    at_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=db.now_ms())
