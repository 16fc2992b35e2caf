# SPDX-License-Identifier: Apache-2.0
"""Flags that administrators set of a host or a device, with a reason: drained, tainted, disabled.

The history follows from the event that is announced. Who sets it does not wait for Placement.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, history, notifications, work
from cyborg.common import errors
from cyborg.common.reasons import is_news
from cyborg.db import models
from cyborg.inventory import bare_metal
from cyborg.notifications import notices

LOG = logging.getLogger(__name__)


class Flag(NamedTuple):
    """A flag: a column with its values and the events that tell them, first unset."""

    word: str
    column: str
    reason: str
    events: tuple[notices.NoticeKind, notices.NoticeKind]
    values: tuple[Any, Any] = (False, True)


DRAINED = Flag(
    "drained", "drained", "drain_reason", (notices.HOST_UNDRAINED, notices.HOST_DRAINED)
)
HOST_TAINTED = Flag(
    "tainted", "tainted", "taint_reason", (notices.HOST_UNTAINTED, notices.HOST_TAINTED)
)
_DEVICE_TAINTED = HOST_TAINTED._replace(events=(notices.DEVICE_UNTAINTED, notices.DEVICE_TAINTED))
_DISABLED = Flag(
    "disabled",
    "status",
    "disabled_reason",
    (notices.DEVICE_ENABLED, notices.DEVICE_DISABLED),
    (models.ENABLED, models.MAINTAINING),
)


def put(
    session: orm.Session,
    flag: Flag,
    host: models.Host,
    device: models.Device | None = None,
    *,
    on: bool,
    reason: str | None,
) -> None:
    """Set the flag of the host, or of its device, or clear it; the row is locked.

    It may be so already; another reason takes the place of the one before.
    """
    row, event = device or host, flag.events[on]
    is_other = getattr(row, flag.column) != flag.values[on]
    if is_other or (reason and is_news(getattr(row, flag.reason), reason)):
        setattr(row, flag.column, flag.values[on])
        setattr(row, flag.reason, reason)
        notice = (
            notices.of_device(event, device, host.node)
            if device
            else notices.of_host(event, host)
        )
        notifications.announce(session, [notice])
    work.want(session, work.PLACEMENT, [host.name])
    what = f"Device {device.uuid}" if device else f"Host {host.name}"
    state = f"{flag.word}: {history.in_log(reason)}" if on else f"not {flag.word} any more"
    db.after_commit(session, lambda: LOG.info("%s is %s", what, state))


def enable_device(uuid: str) -> None:
    """Put a device back into service; it may be enabled already.

    :raises NotFound: there is no such device
    :raises Conflict: its host has no agent
    """
    _put_of_device(_DISABLED, uuid, on=False)


def disable_device(uuid: str, reason: str | None = None) -> None:
    """Take a device out of service; it stays with its guests and is given to no new one.

    :raises NotFound: there is no such device
    :raises Conflict: its host has no agent
    """
    _put_of_device(_DISABLED, uuid, on=True, reason=reason)


def taint_device(uuid: str, reason: str | None = None) -> None:
    """Taint a device: only profiles that tolerate it get it.

    :raises NotFound: there is no such device
    :raises Conflict: its host has no agent
    """
    _put_of_device(_DEVICE_TAINTED, uuid, on=True, reason=reason)


def untaint_device(uuid: str) -> None:
    """Give a device to every guest again; it may not be tainted.

    :raises NotFound: there is no such device
    :raises Conflict: its host has no agent
    """
    _put_of_device(_DEVICE_TAINTED, uuid, on=False)


@db.retry
def _put_of_device(flag: Flag, uuid: str, *, on: bool, reason: str | None = None) -> None:
    row = models.Device
    query = sa.select(row).where(row.uuid == uuid).options(orm.selectinload(row.host))
    with db.writer() as session:
        device = session.scalar(query.with_for_update())
        if device is None:
            raise errors.NotFound.of("Device", uuid=uuid)
        bare_metal.refuse(device.host, f"Device {uuid}")
        put(session, flag, device.host, device, on=on, reason=reason)
