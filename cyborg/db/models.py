# SPDX-License-Identifier: Apache-2.0
"""The schema: one typed model a table. What refers to none of these is in :mod:`.records`.

Natural keys are unique here, so that no race can store a device, handle or name twice. Types and
states are plain strings checked in code: a new driver needs no migration.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import hybrid

from cyborg.common import request_groups
from cyborg.db.base import Base as Base
from cyborg.db.base import new_uuid as new_uuid
from cyborg.db.base import table_args
from cyborg.db.base import utcnow as utcnow
from cyborg.db.records import *  # noqa: F403 - models.X names all tables
from cyborg.db.types import JsonText, LongText, Sentence, Timestamp, string

#: The states of an ARQ; how they follow each other is :mod:`cyborg.states.arq_states`.
INITIAL = "Initial"
BIND_STARTED = "BindStarted"
BOUND = "Bound"
BIND_FAILED = "BindFailed"
UNBOUND = "Unbound"
DELETING = "Deleting"

#: States in which an ARQ serves a guest or is about to; in no other does it have a handle.
SERVING = frozenset({BIND_STARTED, BOUND})
#: States of an ARQ that a consumer has asked to be bound, however that has ended.
ASKED = SERVING | {BIND_FAILED}

#: Whose facts those of a host are: its agent's, or Ironic's, of a bare-metal node without agent.
AGENT = "agent"
IRONIC = "ironic"

#: What an administrator says of a device: it may be given out, or it is disabled.
ENABLED = "enabled"
MAINTAINING = "maintaining"
#: The states of a deployable's program; how they follow each other is
#: :mod:`cyborg.programming.states`.
UNMANAGED = "unmanaged"
BLANK = "blank"
LOADED = "loaded"
WITHDRAWN = "withdrawn"
WRITING = "writing"
LOST = "lost"
RESTORING = "restoring"
DAMAGED = "damaged"

#: What the last user of an attach handle has left; how they follow each other is
#: :mod:`cyborg.states.handle_states`.
CLEAN = "clean"
TO_OVERWRITE = "to_overwrite"
TO_CLEAN = "to_clean"

#: States in which it is known what a deployable runs. In any other it is not given out.
SETTLED = frozenset({UNMANAGED, BLANK, LOADED})

#: ``function_shown`` of what is blank since a write failed or was given up: no id of a function.
LEFT_OVER = "?"


class Host(Base):
    """A compute host, as its agent reports it, or a bare-metal node, as Ironic knows it.

    The devices of a bare-metal node have no deployables, and it has no resource providers.
    """

    __tablename__ = "hosts"

    #: That of the node in Ironic, if the host was known from there first.
    uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True, default=new_uuid)
    #: :data:`AGENT` or :data:`IRONIC`.
    managed_by: orm.Mapped[str] = orm.mapped_column(string(20), default=AGENT, server_default=AGENT)
    #: The agent's RPC server name, ``[DEFAULT] host`` there.
    name: orm.Mapped[str] = orm.mapped_column(string(255), unique=True)
    #: The name of the host's root resource provider: Nova's node name.
    node: orm.Mapped[str] = orm.mapped_column(string(255), index=True)
    #: Start of the reporting agent in milliseconds since the epoch, and its report counter.
    report_started: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=0)
    report_counter: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=0)
    #: Digest of the last report applied; null makes the next one be read in full.
    report_digest: orm.Mapped[str | None] = orm.mapped_column(string(64), default=None)
    #: When it reported last, in milliseconds by the database's clock; 0 if it never did.
    last_seen_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, server_default="0")
    #: Driver name to error sentence, for the drivers that failed in the last report.
    driver_errors: orm.Mapped[dict[str, str]] = orm.mapped_column(JsonText, default=dict)
    #: What an agent's report lacked that is kept until the next one lacks it too, as a hash.
    lacked: orm.Mapped[str | None] = orm.mapped_column(string(64), default=None)
    #: Why a message in its name was last refused, and when, by the database's clock. It is shown
    #: for an hour, see :mod:`cyborg.liveness`. By the code it is known what may replace it.
    refused: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    refused_code: orm.Mapped[str | None] = orm.mapped_column(string(20), default=None)
    refused_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, default=None)
    #: How many accelerators no driver offers, by the last report; null if nobody looked.
    not_offered: orm.Mapped[int | None] = orm.mapped_column(default=None)
    #: Why, in a bounded number of lines.
    not_offered_reasons: orm.Mapped[list[str] | None] = orm.mapped_column(JsonText, default=None)
    #: Readings of its devices' sensors at the last report, by place and name; null if none. The
    #: column may be long, so a query reads it only by name.
    readings: orm.Mapped[Mapping[str, Mapping[str, float]] | None] = orm.mapped_column(
        JsonText, default=None, deferred=True
    )
    #: Its reports are overdue. Its devices are kept.
    down: orm.Mapped[bool] = orm.mapped_column(default=False, server_default=sa.false())
    #: An administrator has it drained: nothing new is given out. Why, and since when.
    drained: orm.Mapped[bool] = orm.mapped_column(default=False, server_default=sa.false())
    drain_reason: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    drained_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, default=None)
    #: Kept from guests that do not tolerate it, like a :class:`Device`. Why.
    tainted: orm.Mapped[bool] = orm.mapped_column(default=False, server_default=sa.false())
    taint_reason: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    #: Removed by an administrator; the row stays until Placement has none of its providers.
    removed: orm.Mapped[bool] = orm.mapped_column(default=False, server_default=sa.false())
    #: When all its providers were last to be read in full, by the database's clock.
    audited_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, server_default="0")
    #: When the allocations of its Bound ARQs were last to be read, by the database's clock.
    allocations_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, server_default="0")


class HostKey(Base):
    """The public part of a key that a host signs its messages with.

    A host with any row, revoked or not, is believed nothing that is not signed.
    """

    __tablename__ = "host_keys"

    #: ``Host.name``. A key may be enrolled before the host has reported, so there may be no row.
    host_name: orm.Mapped[str] = orm.mapped_column(string(255), index=True)
    #: What the key is called: a hash of it. No two hosts have the same key.
    fingerprint: orm.Mapped[str] = orm.mapped_column(string(64), unique=True)
    public_key: orm.Mapped[str] = orm.mapped_column(string(255))
    #: When it was revoked, by the database's clock; null while it is good.
    revoked_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, default=None)
    #: The highest number of a message that it has signed, and which of the 63 numbers up to it
    #: have been seen, the lowest bit for the highest number.
    counter: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=0, server_default="0")
    seen: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=0, server_default="0")
    #: When a message was last taken, by the database's clock; null if none was.
    used_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, default=None)


class Conductor(Base):
    """A conductor process, so that operators see which ones live."""

    __tablename__ = "conductors"

    uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True, default=new_uuid)
    #: The name under which it claims work, new at each start.
    name: orm.Mapped[str] = orm.mapped_column(string(255), unique=True)
    host: orm.Mapped[str] = orm.mapped_column(string(255))
    #: Milliseconds since the epoch by the database's clock.
    last_seen_ms: orm.Mapped[int] = orm.mapped_column(sa.BigInteger)


class Device(Base):
    """A physical accelerator card or function of a host."""

    __tablename__ = "devices"

    uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True, default=new_uuid)
    host_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("hosts.id"), index=True)
    #: The driver that reported the device; while it fails, the device is kept.
    driver: orm.Mapped[str] = orm.mapped_column(string(100))
    type: orm.Mapped[str] = orm.mapped_column(string(30))
    vendor: orm.Mapped[str] = orm.mapped_column(string(255))
    model: orm.Mapped[str] = orm.mapped_column(string(255))
    std_board_info: orm.Mapped[str | None] = orm.mapped_column(LongText, default=None)
    vendor_board_info: orm.Mapped[str | None] = orm.mapped_column(LongText, default=None)
    #: The serial that tells its card from others, as it was shown last; null if none ever was.
    identity: orm.Mapped[str | None] = orm.mapped_column(LongText, default=None)
    #: :data:`ENABLED` or :data:`MAINTAINING`.
    status: orm.Mapped[str] = orm.mapped_column(string(30), default=ENABLED)
    #: Why an administrator has disabled it, if that was said.
    disabled_reason: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    #: An administrator keeps it from guests whose profile does not tolerate that. Why.
    tainted: orm.Mapped[bool] = orm.mapped_column(default=False, server_default=sa.false())
    taint_reason: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    #: The fault of the device that its driver reports, so that it is not given out; null if none.
    unhealthy: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    #: Gone from the host but kept, since an ARQ holds one of its handles, or it has vanished.
    missing: orm.Mapped[bool] = orm.mapped_column(default=False)
    #: Of a card that vanished: until when its record is kept in any case, by the database's clock.
    kept_until_ms: orm.Mapped[int | None] = orm.mapped_column(
        sa.BigInteger, index=True, default=None
    )

    host: orm.Mapped[Host] = orm.relationship(lazy="raise")
    control_path: orm.Mapped[ControlPath] = orm.relationship(
        lazy="raise", back_populates="device", uselist=False
    )
    deployables: orm.Mapped[list[Deployable]] = orm.relationship(
        lazy="raise", back_populates="device", order_by="Deployable.id"
    )


class ControlPath(Base):
    """How the host reaches a device to manage it; the device's natural key on that host."""

    __tablename__ = "control_paths"
    __table_args__ = table_args(sa.UniqueConstraint("host_id", "cpid_type", "cpid_info"))

    uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True, default=new_uuid)
    host_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("hosts.id"))
    device_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("devices.id"), unique=True)
    cpid_type: orm.Mapped[str] = orm.mapped_column(string(30))
    cpid_info: orm.Mapped[str] = orm.mapped_column(string(255))

    device: orm.Mapped[Device] = orm.relationship(lazy="raise", back_populates="control_path")


class ResourceProvider(Base):
    """A Placement provider that we made; the row outlives its deployable until it is deleted."""

    __tablename__ = "resource_providers"

    uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True)
    name: orm.Mapped[str] = orm.mapped_column(string(255))
    host_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("hosts.id"), index=True)
    #: The generation our last write left; null means Placement must be read in full.
    generation: orm.Mapped[int | None] = orm.mapped_column(default=None)
    #: ``{"inventories": {class: {...}}, "traits": [...], "others": {...}}``: what is ours on it,
    #: and likewise what is not, as both were at that generation. ``"unsure": true`` while Placement
    #: may still carry out what was asked before.
    written: orm.Mapped[dict[str, Any]] = orm.mapped_column(JsonText, default=dict)
    #: Whether Placement has the trait of tainted devices on it.
    tainted: orm.Mapped[bool] = orm.mapped_column(
        default=False, server_default=sa.false(), index=True
    )
    #: Why nothing of it is given out, a sentence: :mod:`cyborg.placement.adoption`.
    withheld: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    #: When it was taken out of its host's tree, to be deleted later; null as long as it was not.
    detached_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, default=None)


class Fact(NamedTuple):
    """The part of an :class:`Attribute` that rules judge."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class ProgramRecord:
    """A deployable's program as it is recorded, in columns of these names.

    Where another deployable's layout has made it, a query may put the state of that one here.
    """

    program_mode: str | None
    program_state: str
    bitstream_id: str | None
    bitstream: dict[str, Any] | None
    function_id: str | None
    function_name: str | None
    function_shown: str | None

    @property
    def is_settled(self) -> bool:
        """Whether it is known what it runs, and that is not about to change."""
        return self.program_state in SETTLED


class Deployable(Base):
    """A part of a device that consumers are given handles of; one resource provider."""

    __tablename__ = "deployables"

    uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True, default=new_uuid)
    device_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("devices.id"), index=True)
    parent_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey("deployables.id"), index=True, default=None
    )
    root_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey("deployables.id"), index=True, default=None
    )
    name: orm.Mapped[str] = orm.mapped_column(string(255), unique=True)
    num_accelerators: orm.Mapped[int] = orm.mapped_column()
    rp_uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True)
    driver_name: orm.Mapped[str] = orm.mapped_column(string(100))
    #: How it is programmed, as its driver says: ``dynamic``, ``single-program``; null: it is not.
    program_mode: orm.Mapped[str | None] = orm.mapped_column(string(20), default=None)
    #: The vendor in the trait of a function; empty if it has none.
    function_vendor: orm.Mapped[str] = orm.mapped_column(string(50), default="", server_default="")
    #: What it runs: image and function, as far as known; both null if nothing is known.
    bitstream_id: orm.Mapped[str | None] = orm.mapped_column(string(36), default=None)
    #: What the host checked that image by, to write it again: an operation's ``image``.
    bitstream: orm.Mapped[dict[str, Any] | None] = orm.mapped_column(JsonText, default=None)
    function_id: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: The function's id in the form in which such ids are compared.
    function_plain: orm.Mapped[str | None] = orm.mapped_column(
        string(255), index=True, default=None
    )
    function_name: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: When that was written, by the database's clock, on whose behalf, and how it was verified.
    programmed_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, default=None)
    programmed_by: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    verified_by: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: One of the states above; changed by :mod:`cyborg.programming.states` only.
    program_state: orm.Mapped[str] = orm.mapped_column(
        string(20), default=UNMANAGED, server_default=UNMANAGED
    )
    #: The function in its plain form that the hardware has shown since that was recorded, ``""``
    #: for none; null if it has shown nothing.
    function_shown: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: Whether the driver prepares a handle before use and cleans it afterwards, on the host.
    prepares: orm.Mapped[bool] = orm.mapped_column(default=False)
    cleans: orm.Mapped[bool] = orm.mapped_column(default=False)
    #: Whether cleaning erases what a guest wrote; if so it is due though the handle has vanished.
    clean_erases: orm.Mapped[bool] = orm.mapped_column(default=False, server_default=sa.false())
    #: UUID or name of the image that is written between two guests; null: nothing is.
    blank_image: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: The projects that may have handles at a time, if each is a share of one card; else null.
    shared: orm.Mapped[str | None] = orm.mapped_column(string(20), default=None)
    #: Gone from the host but kept, since an ARQ holds one of its handles.
    missing: orm.Mapped[bool] = orm.mapped_column(default=False)
    #: That of its provider.
    withheld: orm.Mapped[str | None] = orm.column_property(
        sa.select(ResourceProvider.withheld)
        .where(ResourceProvider.uuid == rp_uuid)
        .correlate_except(ResourceProvider)
        .scalar_subquery()
    )

    device: orm.Mapped[Device] = orm.relationship(lazy="raise", back_populates="deployables")
    attributes: orm.Mapped[list[Attribute]] = orm.relationship(
        lazy="raise",
        back_populates="deployable",
        order_by="Attribute.id",
        cascade="save-update, merge, delete, delete-orphan",
    )
    attach_handles: orm.Mapped[list[AttachHandle]] = orm.relationship(
        lazy="raise", back_populates="deployable", order_by="AttachHandle.id"
    )

    @property
    def record(self) -> ProgramRecord:
        """The record of the program as it is now."""
        return ProgramRecord(*(getattr(self, name) for name in ProgramRecord.__slots__))

    @property
    def facts(self) -> list[Fact]:
        """The attributes, which must be loaded, as rules judge them."""
        return [Fact(each.key, each.value) for each in self.attributes]

    @hybrid.hybrid_property
    def is_settled(self) -> bool:
        """As of :class:`ProgramRecord`."""
        return self.program_state in SETTLED

    @is_settled.inplace.expression
    @classmethod
    def _is_settled(cls) -> sa.ColumnElement[bool]:
        return cls.program_state.in_(sorted(SETTLED))


class Attribute(Base):
    """A fact about a deployable. Key ``rc`` is its resource class, ``traits…`` its traits."""

    __tablename__ = "attributes"
    __table_args__ = table_args(sa.UniqueConstraint("deployable_id", "key"))

    uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True, default=new_uuid)
    deployable_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("deployables.id"))
    key: orm.Mapped[str] = orm.mapped_column(string(255))
    value: orm.Mapped[str] = orm.mapped_column(LongText)
    #: ``driver`` rows follow the reports; ``admin`` rows survive them.
    origin: orm.Mapped[str] = orm.mapped_column(string(10), default="driver")

    deployable: orm.Mapped[Deployable] = orm.relationship(lazy="raise", back_populates="attributes")


class AttachHandle(Base):
    """What a guest is given. It is in use when an ARQ refers to it, and never otherwise.

    One whose last user has left something is given to nobody before that is gone.
    """

    __tablename__ = "attach_handles"
    __table_args__ = table_args(sa.UniqueConstraint("deployable_id", "attach_info"))

    uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True, default=new_uuid)
    deployable_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("deployables.id"))
    attach_type: orm.Mapped[str] = orm.mapped_column(string(30))
    #: JSON text with sorted keys, so that equal handles are equal strings.
    attach_info: orm.Mapped[str] = orm.mapped_column(string(255))
    #: Gone from the host but held by an ARQ, or not clean.
    missing: orm.Mapped[bool] = orm.mapped_column(default=False)
    #: One of :mod:`cyborg.states.handle_states`, which alone changes it and each ``left_`` column.
    state: orm.Mapped[str] = orm.mapped_column(string(20), default=CLEAN, server_default=CLEAN)
    #: What the deployable runs was written for who has left it, see :func:`.using_arqs.note_needs`.
    needs_write: orm.Mapped[bool] = orm.mapped_column(default=False, server_default=sa.false())
    #: When it was left, and why it is not clean although that was tried.
    left_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, default=None)
    left_reason: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    #: By which ARQ, as that was. There may be no such row any more, or one that is bound again.
    left_arq: orm.Mapped[str | None] = orm.mapped_column(string(36), index=True, default=None)
    left_project: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    left_profile: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    left_host: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    left_consumer: orm.Mapped[str | None] = orm.mapped_column(string(36), default=None)
    left_created_at: orm.Mapped[datetime.datetime | None] = orm.mapped_column(
        Timestamp, default=None
    )
    left_by: orm.Mapped[dict[str, Any] | None] = orm.mapped_column(JsonText, default=None)

    deployable: orm.Mapped[Deployable] = orm.relationship(
        lazy="raise", back_populates="attach_handles"
    )
    arq: orm.Mapped[Arq | None] = orm.relationship(lazy="raise", back_populates="attach_handle")

    @hybrid.hybrid_property
    def is_left(self) -> bool:
        """Whether its last user has left something, so that nobody may have it."""
        return self.state != CLEAN

    @is_left.inplace.expression
    @classmethod
    def _is_left(cls) -> sa.ColumnElement[bool]:
        return cls.state != CLEAN

    @hybrid.hybrid_property
    def is_to_overwrite(self) -> bool:
        """Whether its deployable is to be overwritten before it is cleaned."""
        return self.state == TO_OVERWRITE

    @is_to_overwrite.inplace.expression
    @classmethod
    def _is_to_overwrite(cls) -> sa.ColumnElement[bool]:
        return cls.state == TO_OVERWRITE

    @hybrid.hybrid_property
    def is_kept(self) -> bool:
        """Whether an ARQ has it, or it is left: it is not free."""
        return self.arq is not None or self.is_left

    @is_kept.inplace.expression
    @classmethod
    def _is_kept(cls) -> sa.ColumnElement[bool]:
        arq = orm.aliased(Arq)
        held = sa.exists().where(arq.attach_handle_id == cls.id).correlate_except(arq)
        return sa.or_(cls.is_left, held)

    @classmethod
    def is_kept_beside(cls, arq: type[Arq]) -> sa.ColumnElement[bool]:
        """:attr:`is_kept` in a query that joins the ARQs of handles, also of those without one."""
        return sa.or_(arq.id.is_not(None), cls.is_left)


class DeviceProfile(Base):
    """What a consumer may ask for, by name."""

    __tablename__ = "device_profiles"

    uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True, default=new_uuid)
    name: orm.Mapped[str] = orm.mapped_column(string(255), unique=True)
    description: orm.Mapped[str | None] = orm.mapped_column(LongText, default=None)
    #: Request groups in order, each a flat map of strings.
    groups: orm.Mapped[list[dict[str, str]]] = orm.mapped_column(JsonText)
    #: ``public``, or ``private`` to the projects below.
    visibility: orm.Mapped[str] = orm.mapped_column(
        string(10), default="public", server_default="public"
    )
    #: Whether ARQs may be made of it.
    enabled: orm.Mapped[bool] = orm.mapped_column(default=True, server_default=sa.true())
    #: Descriptions for people, by their names; null if there are none.
    extra: orm.Mapped[dict[str, str] | None] = orm.mapped_column(JsonText, default=None)
    #: How many ARQs made of it the caller has; null if that was not asked for.
    in_use: orm.Mapped[int | None] = orm.query_expression()
    #: Whether Placement has the trait of tainted devices anywhere; likewise.
    taints: orm.Mapped[bool | None] = orm.query_expression()

    projects: orm.Mapped[list[DeviceProfileProject]] = orm.relationship(
        lazy="raise",
        order_by="DeviceProfileProject.project_id",
        cascade="save-update, merge, delete, delete-orphan",
        passive_deletes=True,
    )


class DeviceProfileProject(Base):
    """A project that may use a private device profile."""

    __tablename__ = "device_profile_projects"
    __table_args__ = table_args(sa.UniqueConstraint("profile_id", "project_id"))

    profile_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey("device_profiles.id", ondelete="CASCADE")
    )
    project_id: orm.Mapped[str] = orm.mapped_column(string(255))


class Arq(Base):
    """One accelerator request: a claim to one attach handle on behalf of an instance."""

    __tablename__ = "arqs"

    uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True, default=new_uuid)
    project_id: orm.Mapped[str | None] = orm.mapped_column(string(255), index=True)
    #: One of :mod:`cyborg.states.arq_states`; changed by guarded UPDATE only.
    state: orm.Mapped[str] = orm.mapped_column(string(30), index=True)
    #: Why; see :mod:`cyborg.common.reasons`.
    state_reason: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    private_reason: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    #: Snapshot of the profile at creation, so that a profile can be deleted or changed.
    device_profile_name: orm.Mapped[str] = orm.mapped_column(string(255))
    #: Which profile that was, whatever its name is now.
    device_profile_uuid: orm.Mapped[str | None] = orm.mapped_column(
        string(36), index=True, default=None
    )
    device_profile_group_id: orm.Mapped[int] = orm.mapped_column(default=0)
    group: orm.Mapped[dict[str, str]] = orm.mapped_column("device_profile_group", JsonText)
    #: What it counts as in the quotas of its project.
    resource_class: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: As the consumer sent them: the host's name or node, the provider, and itself, which is an
    #: instance or an allocation.
    hostname: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    device_rp_uuid: orm.Mapped[str | None] = orm.mapped_column(string(36), index=True, default=None)
    consumer_uuid: orm.Mapped[str | None] = orm.mapped_column(string(36), index=True, default=None)
    #: When the present binding was asked for, in milliseconds by the database's clock.
    bind_started_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, default=None)
    #: When Nova was last asked for the instance, and since when Nova does not know it.
    instance_asked_ms: orm.Mapped[int | None] = orm.mapped_column(
        sa.BigInteger, index=True, default=None
    )
    instance_missed_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, default=None)
    #: Since when Placement has no allocation of the instance on the provider.
    allocation_missed_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, default=None)
    #: Whether a write of its handle's deployable has begun while it had that, or waited for it, and
    #: has not ended well for it. What the deployable runs was written for it, if it leaves.
    needs_write: orm.Mapped[bool] = orm.mapped_column(default=False, server_default=sa.false())
    #: Unique: a handle cannot be given twice, whatever the code above does.
    attach_handle_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey("attach_handles.id"), unique=True, default=None
    )

    #: The allocation that it is part of, whose uuid is that of its consumer; null if it is Nova's.
    allocation_uuid: orm.Mapped[str | None] = orm.mapped_column(
        string(36), index=True, default=None
    )
    #: Under which name the host of its consumer connects to what is reached over a network; null if
    #: it is the host of the device.
    consumer_nqn: orm.Mapped[str | None] = orm.mapped_column(string(223), default=None)
    #: The secret of its handle, for its owner only. Nothing reads it along with the rest.
    access_key: orm.Mapped[str | None] = orm.mapped_column(
        string(255), default=None, deferred=True, deferred_raiseload=True
    )

    attach_handle: orm.Mapped[AttachHandle | None] = orm.relationship(
        lazy="raise", back_populates="arq"
    )

    @property
    def request(self) -> request_groups.RequestGroup:
        """What it asks for."""
        return request_groups.RequestGroup.parse(self.group)


class Allocation(Base):
    """All that one consumer has, or is about to have; Nova's instances have none of these."""

    __tablename__ = "allocations"
    __table_args__ = table_args(
        sa.Index("ix_allocations_lease_ms", "lease_ms"), sa.Index("ix_allocations_state", "state")
    )

    #: That of the consumer, in Placement too.
    uuid: orm.Mapped[str] = orm.mapped_column(string(36), unique=True)
    project_id: orm.Mapped[str] = orm.mapped_column(string(255), index=True)
    user_id: orm.Mapped[str] = orm.mapped_column(string(255))
    consumer_type: orm.Mapped[str] = orm.mapped_column(string(100))
    consumer_name: orm.Mapped[str | None] = orm.mapped_column(string(255), default=None)
    #: One of :mod:`cyborg.states.allocation_states`; changed by guarded UPDATE only.
    state: orm.Mapped[str] = orm.mapped_column(string(20))
    #: Why; by the code the API knows whether to choose anew.
    state_reason: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    private_reason: orm.Mapped[str | None] = orm.mapped_column(Sentence, default=None)
    reason_code: orm.Mapped[str | None] = orm.mapped_column(string(20), default=None)
    #: What was asked for, to tell whether it is asked for again.
    request: orm.Mapped[dict[str, Any]] = orm.mapped_column(JsonText)
    #: Which of the alternatives was chosen, counted from 0.
    alternative: orm.Mapped[int] = orm.mapped_column()
    #: What serves each group: :class:`cyborg.allocations.plans.Plan`.
    plan: orm.Mapped[list[dict[str, Any]]] = orm.mapped_column(JsonText)
    #: How many ARQs it has.
    accelerators: orm.Mapped[int] = orm.mapped_column()
    #: For how long it is kept without renewal; null: for ever. When it ends, by the database's
    #: clock in milliseconds.
    lease_seconds: orm.Mapped[int | None] = orm.mapped_column(default=None)
    lease_ms: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger, default=None)
