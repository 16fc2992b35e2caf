# SPDX-License-Identifier: Apache-2.0
"""Attach handles as operators see them: the state of each, why it has it, and whose it is."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from cyborg import db, work
from cyborg.db import models, paging
from cyborg.drivers import base
from cyborg.states import availability

IN_USE = "in_use"
CLEAN_FAILED = "clean_failed"
CLEANING = "cleaning"
UNAVAILABLE = "unavailable"
FREE = "free"

_HANDLE, _DEPLOYABLE, _DEVICE = models.AttachHandle, models.Deployable, models.Device
_ARQ, _HOST, _WORK = models.Arq, models.Host, models.Work
_CLASS = models.Attribute

RESOURCE_CLASS = _CLASS.value


def conditions() -> Mapping[str, sa.ColumnElement[bool]]:
    """What makes a row of :func:`joined` be in each state; the first one that holds counts."""
    return {
        IN_USE: _ARQ.id.is_not(None),
        CLEAN_FAILED: _HANDLE.left_reason.is_not(None),
        CLEANING: sa.and_(_HANDLE.is_left),
        UNAVAILABLE: sa.or_(~availability.usable(), _HANDLE.missing),
        FREE: sa.true(),
    }


STATES = (IN_USE, CLEAN_FAILED, CLEANING, UNAVAILABLE, FREE)


def joined(*columns: Any) -> sa.Select[Any]:
    """Columns of all handles, with what they are a part of and the ARQ that holds them."""
    is_class = sa.and_(
        _CLASS.deployable_id == _DEPLOYABLE.id, _CLASS.key == base.RESOURCE_CLASS_KEY
    )
    return (
        sa.select(*columns)
        .select_from(_HANDLE)
        .join(_DEPLOYABLE, _DEPLOYABLE.id == _HANDLE.deployable_id)
        .join(_DEVICE, _DEVICE.id == _DEPLOYABLE.device_id)
        .join(_HOST, _HOST.id == _DEVICE.host_id)
        .join(_CLASS, is_class)
        .outerjoin(_ARQ, _ARQ.attach_handle_id == _HANDLE.id)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedHandle:
    """An attach handle with its state."""

    id: int
    uuid: str
    state: str
    attach_type: str
    attach_info: Mapping[str, Any]
    resource_class: str
    device_uuid: str
    deployable_uuid: str
    hostname: str
    arq_uuid: str | None
    consumer_uuid: str | None
    project_id: str | None
    state_reason: str | None
    created_at: datetime.datetime
    updated_at: datetime.datetime | None


COLUMNS = paging.columns(_HANDLE, "id", "uuid", "created_at", "updated_at")


def list_handles(page: paging.Page = paging.ALL, **wanted: str) -> list[ListedHandle]:
    """Handles that have the values ``wanted``, from one SELECT.

    :raises Invalid: the sort key or the marker is unknown
    """
    state = sa.case(*((condition, name) for name, condition in conditions().items()))
    filters = {
        "state": state,
        "device_uuid": _DEVICE.uuid,
        "deployable_uuid": _DEPLOYABLE.uuid,
        "hostname": _HOST.node,
        "instance_uuid": _ARQ.consumer_uuid,
    }
    columns = (
        _HANDLE.id,
        _HANDLE.uuid,
        state,
        _HANDLE.attach_type,
        _HANDLE.attach_info,
        RESOURCE_CLASS,
        _DEVICE.uuid,
        _DEPLOYABLE.uuid,
        _HOST.node,
        sa.func.coalesce(_ARQ.uuid, _HANDLE.left_arq),
        _ARQ.consumer_uuid,
        sa.func.coalesce(_ARQ.project_id, _HANDLE.left_project),
    )
    reasons = (_HANDLE.left_reason, _last_error(), _why_unavailable())
    query = joined(*columns, *reasons, _HANDLE.created_at, _HANDLE.updated_at)
    with db.reader() as session:
        select = paging.select(session, query, COLUMNS, page, wanted, filters=filters)
        return [_handle(row) for row in session.execute(select)]


def _last_error() -> sa.ScalarSelect[str]:
    """What keeps the host step of a handle from its end."""
    mine = (_WORK.kind == work.HOST_STEP, _WORK.key == _HANDLE.uuid)
    return sa.select(_WORK.last_error).where(*mine).correlate(_HANDLE).scalar_subquery()


def _why_unavailable() -> sa.ColumnElement[str]:
    """Why a handle that nobody has cannot be given out; it must be unavailable."""
    gone = sa.or_(_HANDLE.missing, _DEPLOYABLE.missing, _DEVICE.missing)
    disabled = sa.func.coalesce(_DEVICE.disabled_reason, "Its device is disabled.")
    return sa.func.coalesce(
        sa.case((gone, "It is gone from its host.")),
        _DEVICE.unhealthy,
        _DEPLOYABLE.withheld,
        sa.case((~availability.enabled(), disabled)),
        sa.case(
            (_HOST.removed, "Its host is removed."),
            (_HOST.down, "Its host is down."),
            else_="Its host is drained: " + sa.func.coalesce(_HOST.drain_reason, "no reason given"),
        ),
    )


def _handle(row: Sequence[Any]) -> ListedHandle:
    shown, (created, updated) = row[:12], row[-2:]
    reasons = dict(zip((CLEAN_FAILED, CLEANING, UNAVAILABLE), row[12:-2], strict=True))
    id_, uuid, state, kind, info, name, device, deployable, host, arq, instance, project = shown
    return ListedHandle(
        id=id_,
        uuid=uuid,
        state=state,
        attach_type=kind,
        attach_info=json.loads(info),
        resource_class=name,
        device_uuid=device,
        deployable_uuid=deployable,
        hostname=host,
        arq_uuid=arq,
        consumer_uuid=instance,
        project_id=project,
        state_reason=reasons.get(state),
        created_at=created,
        updated_at=updated,
    )
