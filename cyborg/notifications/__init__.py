# SPDX-License-Identifier: Apache-2.0
"""What others are told of ARQs, devices and hosts, over oslo.messaging: billing, monitoring.

Whoever changes something writes what is to be announced in the same transaction, by
:func:`announce`; a conductor sends it afterwards (:mod:`cyborg.notifications.sender`). So nothing
is announced that did not happen, and what happened is announced at least once, in order.

The rows are not rows of work, which melt into one by their key: a notification tells what was, and
nobody can compute that later. And nobody waits for another's lock to write one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import sqlalchemy as sa
from oslo_config import cfg
from oslo_context import context as oslo_context
from oslo_messaging import opts as messaging_opts
from sqlalchemy import orm

from cyborg import db, work
from cyborg.db import models
from cyborg.notifications.notices import Notice

GROUP = "oslo_messaging_notifications"

#: The kind of work that sends them. It has one row, so that one conductor at a time sends.
KIND = "notify"
KEY = "all"

#: oslo.messaging's drivers that tell nobody.
_SILENT = frozenset({"", "noop"})
_LOCAL = _SILENT | {"log", "test"}


class _Process:
    """Whether this process announces anything, and whom it wakes when it has."""

    def __init__(self) -> None:
        self.announces = threading.Event()
        self.wake: Callable[[], None] = _nobody


def _nobody() -> None:
    """There is no conductor in this process; one looks by itself."""


_process = _Process()


def wanted(conf: cfg.ConfigOpts) -> bool:
    """Whether ``[oslo_messaging_notifications] driver`` names anybody who tells others."""
    for group, options in messaging_opts.list_opts():
        if group == GROUP:
            conf.register_opts(options, group=group)
    return not _SILENT.issuperset(conf[GROUP].driver)


def needs_broker(conf: cfg.ConfigOpts) -> bool:
    """Whether what is wanted goes over a message broker, and not only to the log."""
    return wanted(conf) and not _LOCAL.issuperset(conf[GROUP].driver)


def configure(conf: cfg.ConfigOpts) -> None:
    """Let this process announce what it changes, if the configuration wants that."""
    if wanted(conf):
        _process.announces.set()
    else:
        _process.announces.clear()


def close() -> None:
    """Announce nothing any more."""
    _process.announces.clear()
    _process.wake = _nobody


def wake_after_commit(wake: Callable[[], None]) -> None:
    """Have ``wake`` called whenever a transaction of this process has left something to send."""
    _process.wake = wake


def announce(session: orm.Session, notices: Iterable[Notice]) -> None:
    """Record in the caller's transaction what others are to be told when it is committed.

    The caller holds the lock on what it tells of, which keeps the notices of one object in order.
    Where nobody is to be told ``notices`` is not even read.
    """
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
        for notice in notices
    ]
    if rows:
        session.execute(sa.insert(models.Notification), rows)
        db.after_commit(session, _process.wake)


def look() -> bool:
    """Record the work of sending, if there is anything to send; return whether it did so.

    A row that is recorded already is left alone: more to send is no reason to try a broker that
    is down sooner.
    """
    if not _is_send_due():
        return False
    work.want_once(KIND, KEY)
    return True


@db.retry
def _is_send_due() -> bool:
    anything = sa.exists(sa.select(models.Notification.id))
    recorded = sa.exists().where(models.Work.kind == KIND, models.Work.key == KEY)
    with db.reader() as session:
        return bool(session.scalar(sa.select(sa.and_(anything, ~recorded))))
