# SPDX-License-Identifier: Apache-2.0
"""Attach handles as operators see them: the state of each, why it has it, and whose it is."""

from __future__ import annotations

from collections.abc import Mapping
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


COLUMNS = paging.columns(_HANDLE, "id", "uuid", "created_at", "updated_at")


def list_handles(page: paging.Page = paging.ALL, **wanted: str) -> list[sa.Row[Any]]:
    """Handles that have the values ``wanted``, with what is shown of them, from one SELECT.

    :raises Invalid: the sort key or the marker is unknown
    """
    state = sa.case(*((condition, name) for name, condition in conditions().items()))
    reasons = {
        CLEAN_FAILED: _HANDLE.left_reason,
        CLEANING: _last_error(),
        UNAVAILABLE: _why_unavailable(),
    }
    filters = {
        "state": state,
        "device_uuid": _DEVICE.uuid,
        "deployable_uuid": _DEPLOYABLE.uuid,
        "hostname": _HOST.node,
        "instance_uuid": _ARQ.consumer_uuid,
    }
    others: dict[str, Any] = {
        "resource_class": RESOURCE_CLASS,
        "arq_uuid": sa.func.coalesce(_ARQ.uuid, _HANDLE.left_arq),
        "project_id": sa.func.coalesce(_ARQ.project_id, _HANDLE.left_project),
        "state_reason": sa.case(reasons, value=state),
    }
    own = (_HANDLE.uuid, _HANDLE.attach_type, _HANDLE.attach_info)
    named = (column.label(name) for name, column in (filters | others).items())
    query = joined(*own, *named, _HANDLE.created_at, _HANDLE.updated_at)
    with db.reader() as session:
        select = paging.select(session, query, COLUMNS, page, wanted, filters=filters)
        return list(session.execute(select))


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
