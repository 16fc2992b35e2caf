# SPDX-License-Identifier: Apache-2.0
"""The events, and their versioned payloads.

A new field of a payload raises the minor number of its version. Any other change raises the major
number.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from cyborg.common.reasons import Reason
from cyborg.db import models

#: How many users of a device or a host are named.
USERS_MAX = 1000

INFO = "INFO"
WARN = "WARN"
ERROR = "ERROR"


class Payload:
    """The content of a notification. Subclasses are frozen dataclasses."""

    #: One whose fields change after the first release gets a version of its own.
    VERSION: ClassVar[str] = "1.0"
    __slots__ = ()

    def to_wire(self) -> dict[str, Any]:
        """The payload as it is sent, without the fields that all notifications have."""
        return {
            "cyborg_object.name": type(self).__name__,
            "cyborg_object.namespace": "cyborg",
            "cyborg_object.version": self.VERSION,
            "cyborg_object.data": asdict(self),  # type: ignore[call-overload]
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorRequestPayload(Payload):
    """An ARQ. After an unbind, its fields still name what was bound."""

    uuid: str
    project_id: str | None
    #: After the event and before it; ``old_state`` is null if the event creates the ARQ.
    state: str
    old_state: str | None
    #: Why the bind failed, else null.
    state_reason: str | None
    device_profile_name: str
    device_profile_group_id: int
    device_profile_group: Mapping[str, str]
    hostname: str | None
    device_rp_uuid: str | None
    instance_uuid: str | None
    #: Of the attach handle that the ARQ holds, or held until now; null if there is none.
    attach_handle_uuid: str | None
    attach_handle_type: str | None
    device_uuid: str | None
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user of an attach handle."""

    arq_uuid: str
    project_id: str | None
    instance_uuid: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePayload(Payload):
    """A device of a host."""

    uuid: str
    #: Nova's name of the host, as the API shows it.
    hostname: str
    driver: str
    type: str
    vendor: str
    model: str
    status: str
    #: Why it is unhealthy, as its driver says; null if it is healthy.
    unhealthy: str | None
    #: Whether it is gone from its host and kept because an ARQ holds one of its handles.
    missing: bool
    created_at: str
    tainted: bool
    #: Why an administrator has disabled or tainted it, if that is so and was said.
    disabled_reason: str | None
    taint_reason: str | None
    #: Who has a part of it, the oldest first, up to :data:`USERS_MAX`.
    users: Sequence[User] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPayload(Payload):
    """A host with an agent."""

    #: The agent's name, and Nova's name of the host.
    name: str
    hostname: str
    down: bool
    #: Driver name to error sentence, for the drivers that failed in the last report.
    driver_errors: Mapping[str, str]
    created_at: str
    drained: bool
    drain_reason: str | None
    tainted: bool
    taint_reason: str | None
    #: Who has a part of its devices, the oldest first, up to :data:`USERS_MAX`.
    users: Sequence[User] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationPayload(Payload):
    """An operation that programs a deployable."""

    uuid: str
    deployable_uuid: str
    state: str
    #: What was asked for.
    image_uuid: str | None
    image_name: str | None
    function_id: str | None
    function_name: str | None
    asked_by: str
    #: For whose binding or pool it is, else null.
    instance_uuid: str | None
    pool_uuid: str | None
    #: Why it failed, else null.
    error: str | None
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionPoolPayload(Payload):
    """A function pool, without its counts."""

    uuid: str
    name: str
    description: str | None
    function_id: str
    image_uuid: str | None
    hosts: str | None
    free: int
    max_devices: int
    traits: Sequence[str]
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfilePayload(Payload):
    """A device profile."""

    uuid: str
    name: str
    description: str | None
    groups: Sequence[Mapping[str, str]]
    visibility: str
    projects: Sequence[str]
    enabled: bool
    extra: Mapping[str, str]
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """A limit that would have been exceeded."""

    limit_name: str
    used: int
    limit: int
    asked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPayload(Payload):
    """A request that the quota of its project did not permit."""

    project_id: str
    exceeded: Sequence[Excess]


class NoticeKind(NamedTuple):
    """A kind of notification."""

    name: str
    priority: str
    payload: type[Payload]


def _of(what: str, payload: type[Payload]) -> Callable[..., NoticeKind]:
    def make(name: str, priority: str = INFO) -> NoticeKind:
        return NoticeKind(f"{what}.{name}", priority, payload)

    return make


_arq = _of("accelerator_request", AcceleratorRequestPayload)
_device = _of("device", DevicePayload)
_host = _of("host", HostPayload)
_operation = _of("operation", OperationPayload)
_pool = _of("function_pool", FunctionPoolPayload)
_profile = _of("device_profile", DeviceProfilePayload)

ARQ_CREATED = _arq("create.end")
ARQ_BOUND = _arq("bind.end")
ARQ_BIND_FAILED = _arq("bind.error", ERROR)
ARQ_UNBOUND = _arq("unbind.end")
ARQ_DELETED = _arq("delete.end")
ARQ_RELEASED = _arq("release.end", WARN)
DEVICE_CREATED = _device("create.end")
DEVICE_DELETED = _device("delete.end")
DEVICE_ENABLED = _device("enable.end")
DEVICE_DISABLED = _device("disable.end")
DEVICE_UNHEALTHY = _device("unhealthy", WARN)
DEVICE_HEALTHY = _device("healthy")
DEVICE_MISSING = _device("missing", WARN)
DEVICE_FOUND = _device("found")
DEVICE_MOVED = _device("moved", WARN)
DEVICE_TAINTED = _device("taint.end")
DEVICE_UNTAINTED = _device("untaint.end")
HOST_DOWN = _host("down", ERROR)
HOST_UP = _host("up")
HOST_DELETED = _host("delete.end")
HOST_DRAINED = _host("drain.end")
HOST_UNDRAINED = _host("undrain.end")
HOST_TAINTED = _host("taint.end")
HOST_UNTAINTED = _host("untaint.end")
OPERATION_CREATED = _operation("create.end")
OPERATION_SUCCEEDED = _operation("program.end")
OPERATION_FAILED = _operation("program.error", ERROR)
POOL_CREATED = _pool("create.end")
POOL_UPDATED = _pool("update.end")
POOL_DELETED = _pool("delete.end")
PROFILE_CREATED = _profile("create.end")
PROFILE_UPDATED = _profile("update.end")
PROFILE_DELETED = _profile("delete.end")
PROFILE_ENABLED = _profile("enable.end")
PROFILE_DISABLED = _profile("disable.end")
QUOTA_EXCEEDED = NoticeKind("quota.exceeded", WARN, QuotaPayload)


class Notice(NamedTuple):
    """One event with its payload."""

    event: NoticeKind
    payload: Payload
    #: Why a bind failed.
    reason: Reason | None = None
    #: Columns of its entry in the history, where the caller knows them without looking.
    known: Mapping[str, Any] = MappingProxyType({})


class Handle(NamedTuple):
    """The attach handle of an ARQ."""

    uuid: str
    type: str
    device_uuid: str
    #: What it counts as, if the caller has that at hand.
    resource_class: str | None = None


def of_arq(
    event: NoticeKind,
    arq: models.Arq,
    state: str,
    *,
    reason: Reason | None = None,
    handle: Handle | None = None,
    at_ms: int | None = None,
) -> Notice:
    """``arq`` is in ``state`` now; its row still has the old state.

    ``reason`` is why its bind failed. ``at_ms`` is the database's clock, if the caller has read it.
    """
    known = {
        "started_ms": at_ms,
        "resource_class": handle.resource_class if handle else None,
    }
    return Notice(
        event,
        AcceleratorRequestPayload(
            uuid=arq.uuid,
            project_id=arq.project_id,
            state=state,
            old_state=arq.state if event is not ARQ_CREATED else None,
            state_reason=reason.whole if reason else None,
            device_profile_name=arq.device_profile_name,
            device_profile_group_id=arq.device_profile_group_id,
            device_profile_group=arq.group,
            hostname=arq.hostname,
            device_rp_uuid=arq.device_rp_uuid,
            instance_uuid=arq.consumer_uuid,
            attach_handle_uuid=handle.uuid if handle else None,
            attach_handle_type=handle.type if handle else None,
            device_uuid=handle.device_uuid if handle else None,
            created_at=_zoned(arq.created_at),
        ),
        reason,
        {name: value for name, value in known.items() if value is not None},
    )


def of_device(event: NoticeKind, device: models.Device, hostname: str) -> Notice:
    """``device``, as its row is now."""
    # A new row has no default before it is written.
    said = {"hostname": hostname, "tainted": bool(device.tainted), "users": ()}
    return Notice(event, _told(DevicePayload, device, **said))


def of_host(event: NoticeKind, host: models.Host) -> Notice:
    """``host``, as its row is now."""
    return Notice(event, _told(HostPayload, host, hostname=host.node, users=()))


def of_operation(
    event: NoticeKind, operation: models.Operation, *, state: str, error: str | None
) -> Notice:
    """``operation`` is in ``state`` now; its row may still have the old state."""
    said = {"state": state, "error": error, "instance_uuid": operation.consumer_uuid}
    return Notice(event, _told(OperationPayload, operation, **said))


def of_pool(event: NoticeKind, pool: models.FunctionPool) -> Notice:
    """``pool``, which is loaded with its traits."""
    traits = sorted(each.trait for each in pool.traits)
    return Notice(event, _told(FunctionPoolPayload, pool, traits=traits))


def of_profile(event: NoticeKind, profile: models.DeviceProfile) -> Notice:
    """``profile``, which is loaded with its projects."""
    projects = sorted(each.project_id for each in profile.projects)
    extra = profile.extra or {}
    return Notice(event, _told(DeviceProfilePayload, profile, projects=projects, extra=extra))


def _told(payload: type[Payload], row: Any, **said: Any) -> Payload:
    """The payload with what is said, and the other fields as the row has them."""
    said["created_at"] = _zoned(row.created_at)
    names = (each.name for each in fields(payload))  # type: ignore[arg-type]
    return payload(**{name: said[name] if name in said else getattr(row, name) for name in names})


def _zoned(stored: datetime.datetime) -> str:
    return stored.replace(tzinfo=datetime.UTC).isoformat()
