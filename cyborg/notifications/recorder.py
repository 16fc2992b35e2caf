# SPDX-License-Identifier: Apache-2.0
"""Writes the history that follows from the events that are announced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, history, work
from cyborg.common import reasons
from cyborg.db import models
from cyborg.notifications import notices

#: What an event of a device or a host begins, and which field of its payload says why.
_BEGINS = {
    notices.DEVICE_UNHEALTHY: (history.UNHEALTHY, "unhealthy"),
    notices.DEVICE_DISABLED: (history.DISABLED, "disabled_reason"),
    notices.DEVICE_TAINTED: (history.TAINTED, "taint_reason"),
    notices.DEVICE_MISSING: (history.MISSING, None),
    notices.HOST_DRAINED: (history.DRAINED, "drain_reason"),
    notices.HOST_TAINTED: (history.TAINTED, "taint_reason"),
}
#: What one ends that begins nothing. One that does ends what was so for another reason.
_ENDS = {
    notices.DEVICE_HEALTHY: {history.UNHEALTHY},
    notices.DEVICE_ENABLED: {history.DISABLED},
    notices.DEVICE_UNTAINTED: {history.TAINTED},
    notices.DEVICE_FOUND: {history.MISSING},
    notices.DEVICE_DELETED: history.OF_DEVICES,
    notices.HOST_UNDRAINED: {history.DRAINED},
    notices.HOST_UNTAINTED: {history.TAINTED},
    notices.HOST_DELETED: {history.DRAINED, history.TAINTED},
} | {event: {kind} for event, (kind, _) in _BEGINS.items()}
#: What an administrator does.
_SET = frozenset({history.DISABLED, history.DRAINED, history.TAINTED})
_RELEASES = frozenset({notices.ARQ_UNBOUND, notices.ARQ_DELETED})

#: What is written of a bind that its consumer gave up, and what the owner may read of it.
_GIVEN_UP = "It was given up before it had ended."
_NOT_IN_TIME = (
    "The accelerator was not ready before the instance was given up. Try again; if that fails too, "
    "ask the administrator of the cloud."
)


def record(session: orm.Session, found: Iterable[notices.Notice]) -> None:
    """Write the history of these events in the caller's transaction."""
    released: list[str] = []
    ended: dict[str, list[str]] = {}
    begun: list[dict[str, Any]] = []
    ill: dict[str, str | None] = {}
    for notice in found:
        match notice.payload:
            case notices.AcceleratorRequestPayload() as arq:
                if notice.event in _RELEASES and arq.old_state == models.BOUND:
                    released.append(arq.uuid)
                begun += _of_arq(notice, arq)
            case notices.DevicePayload() as device:
                for kind in _ENDS.get(notice.event, ()):
                    ended.setdefault(kind, []).append(device.uuid)
                begun += _of_hardware(notice, hostname=device.hostname, device_uuid=device.uuid)
                if notice.event is notices.DEVICE_UNHEALTHY:
                    ill[device.uuid] = device.unhealthy
            case notices.HostPayload() as host:
                if kinds := _ENDS.get(notice.event):
                    history.end_of_host(session, host.hostname, kinds)
                begun += _of_hardware(notice, hostname=host.hostname)
    history.end_uses(session, released)
    for kind, devices in ended.items():
        history.end_of_devices(session, devices, {kind})
    history.write(session, [*begun, *(history.of_owners(session, ill) if ill else ())])


def _of_arq(
    notice: notices.Notice, arq: notices.AcceleratorRequestPayload
) -> list[dict[str, Any]]:
    if notice.event is notices.ARQ_BOUND and arq.attach_handle_uuid is not None:
        used = {**_about(arq), "kind": history.USED, **notice.known}
        if "resource_class" not in used:
            used["resource_class"] = history.class_of_handle(arq.attach_handle_uuid)
        return [used]
    failed = {**_about(arq), "kind": history.BIND_FAILED, "ended_ms": db.now_ms()}
    if notice.reason is not None:
        why = notice.reason
        plain = reasons.OF_BINDS.get(why.code, why.public)
        return [failed | {"reason": plain, "private_reason": why.whole}]
    if notice.event in _RELEASES and arq.old_state == models.BIND_STARTED:
        return [failed | {"reason": _NOT_IN_TIME, "private_reason": _why_given_up(arq)}]
    return []


def _about(arq: notices.AcceleratorRequestPayload) -> dict[str, Any]:
    return {
        "project_id": arq.project_id,
        "consumer_uuid": arq.instance_uuid,
        "arq_uuid": arq.uuid,
        "hostname": arq.hostname,
        "device_uuid": arq.device_uuid or history.device_of_provider(arq.device_rp_uuid),
        "handle_uuid": arq.attach_handle_uuid,
    }


def _why_given_up(arq: notices.AcceleratorRequestPayload) -> sa.ColumnElement[str]:
    """The sentence that a bind was given up, and what had kept it from its end, if known."""
    tried = {work.BIND: arq.instance_uuid, work.HOST_STEP: arq.attach_handle_uuid}
    failed = sa.literal(f"{_GIVEN_UP} Its last attempt failed: ") + work.last_error(tried)
    return sa.func.coalesce(failed, _GIVEN_UP)


def _of_hardware(notice: notices.Notice, **about: str) -> list[dict[str, Any]]:
    kind, why = _BEGINS.get(notice.event, (None, None))
    if kind is None:
        return []
    return [
        {
            "kind": kind,
            "private_reason": why and getattr(notice.payload, why),
            "actor": history.user() if kind in _SET else None,
            **about,
        }
    ]
