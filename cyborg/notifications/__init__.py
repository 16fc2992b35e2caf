# SPDX-License-Identifier: Apache-2.0
"""Notifications of what happens, over oslo.messaging, for billing and monitoring.

A change and its notification are written in the same transaction, by :func:`announce`; a conductor
sends the notification afterwards (:mod:`cyborg.notifications.sender`). So nothing is announced
that did not happen, and what happened is announced at least once, in order.

The rows are not rows of the work table, where rows with one key become one: each notification
describes a past state that cannot be computed later. And writing one never waits for a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from importlib import metadata

import sqlalchemy as sa
from oslo_config import cfg
from oslo_context import context as oslo_context
from oslo_messaging import opts as messaging_opts
from sqlalchemy import orm

from cyborg import db, work
from cyborg.common import errors, needs
from cyborg.db import models
from cyborg.notifications import recorder, users
from cyborg.notifications.notices import Notice

GROUP = "oslo_messaging_notifications"

#: The kind of work that sends them. It has one row, so that one conductor at a time sends.
KIND = "notify"
KEY = "all"

#: oslo.messaging's drivers that send nothing.
_SILENT = frozenset({"", "noop"})
_LOCAL = _SILENT | {"log", "test"}


class _Process:
    """The process: whether it announces anything, and what to call afterwards."""

    def __init__(self) -> None:
        self.announces = threading.Event()
        self.wake: Callable[[], None] = _nothing


def _nothing() -> None:
    """Do nothing: there is no conductor in this process, and those elsewhere poll."""


_process = _Process()


def wanted(conf: cfg.ConfigOpts) -> bool:
    """True if ``[oslo_messaging_notifications] driver`` names a driver that sends something."""
    for group, options in messaging_opts.list_opts():
        if group == GROUP:
            conf.register_opts(options, group=group)
    return not _SILENT.issuperset(conf[GROUP].driver)


def needs_broker(conf: cfg.ConfigOpts) -> bool:
    """True if notifications go over a message broker, and not only to the log."""
    return wanted(conf) and not _LOCAL.issuperset(conf[GROUP].driver)


def configure(conf: cfg.ConfigOpts) -> None:
    """Let this process announce what it changes, if the configuration says so.

    :raises Misconfigured: nothing could ever be sent
    """
    if wanted(conf):
        needs.check(conf, GROUP)
        known = metadata.entry_points(group="oslo.messaging.notify.drivers").names
        if unknown := ", ".join({*conf[GROUP].driver} - {*known, ""}):
            raise errors.Misconfigured(
                f"[{GROUP}] driver names {unknown}; there are {', '.join(sorted(known))}."
            )
        _process.announces.set()
    else:
        _process.announces.clear()


def wake_after_commit(wake: Callable[[], None]) -> None:
    """Call ``wake`` after each transaction of this process that leaves something to send."""
    _process.wake = wake


def announce(session: orm.Session, notices: Iterable[Notice]) -> None:
    """Record ``notices`` in the caller's transaction: for the history, and to be sent after commit.

    The caller has locked the object of each notice, which keeps the notices of one object in
    order. If this process announces nothing, there is only the history.
    """
    found = list(notices)
    recorder.record(session, found)
    if not _process.announces.is_set():
        return
    current = oslo_context.get_current()
    rows = [
        {
            "uuid": models.new_uuid(),
            "event_type": notice.event.name,
            "priority": notice.event.priority,
            "request_id": current.global_id if current else None,
            "payload": notice.payload.to_wire(),
        }
        for notice in users.name(session, found)
    ]
    if rows:
        session.execute(sa.insert(models.Notification), rows)
        db.after_commit(session, _process.wake)


def look() -> bool:
    """Record the work of sending, if there is anything to send; True if it did so.

    A row that is recorded already is left alone: more to send is no reason to try a broker that
    is down sooner.
    """
    if not _is_send_due():
        return False
    work.want_once(KIND, KEY)
    return True


def _is_send_due() -> bool:
    anything = sa.exists(sa.select(models.Notification.id))
    recorded = sa.exists().where(models.Work.kind == KIND, models.Work.key == KEY)
    return bool(db.read_one(sa.select(sa.and_(anything, ~recorded))))
