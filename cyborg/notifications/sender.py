# SPDX-License-Identifier: Apache-2.0
"""Send the recorded notifications: the handler of the work ``notify/all``, in a conductor.

A row is deleted when the broker has confirmed its message. If the conductor dies in between, the
message is sent again. While the broker is down, the rows wait.
"""

from __future__ import annotations

import datetime
import logging
import threading
from typing import Any

import oslo_messaging as messaging
import sqlalchemy as sa
from oslo_config import cfg
from oslo_messaging.transport import NotificationTransport

from cyborg import db, metrics, work
from cyborg.db import models

LOG = logging.getLogger(__name__)

#: Messages go to the topics of ``[oslo_messaging_notifications]`` in this exchange, unless
#: ``[DEFAULT] control_exchange`` or the transport's URL names another.
EXCHANGE = "cyborg"
SERVICE = "cyborg-conductor"

#: At most so many are sent again if a conductor dies.
_BATCH = 50

_CLOSE_GRACE = 2.0


class Undelivered(work.TryLater):
    """The broker has not confirmed the message."""


class Sender:
    """Sends the recorded notifications, the oldest first."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._publisher = f"{SERVICE}:{conf.host}"
        self._lock = threading.Lock()
        self._transport: _NoticeTransport | None = None
        self._notifier: messaging.Notifier | None = None

    def send_all(self, item: work.Item) -> None:
        """Send until nothing is left.

        :raises Undelivered: the broker did not confirm one; it and those after it wait
        """
        while batch := _oldest():
            sent: list[models.Notification] = []
            try:
                for notification in batch:
                    item.checkpoint()
                    self._send(notification)
                    sent.append(notification)
            finally:
                _forget(sent)

    def close(self) -> None:
        """Close the connection, but do not wait long for a broker that is down."""
        if self._transport is not None:
            closing = threading.Thread(
                target=self._transport.cleanup, name="notifications-close", daemon=True
            )
            closing.start()
            closing.join(_CLOSE_GRACE)

    def _send(self, notification: models.Notification) -> None:
        with self._lock:
            transport, notifier = self._open()
            transport.failure = None
            send = getattr(notifier, notification.priority.lower())
            send({}, notification.event_type, _payload(notification))
            if transport.failure is not None:
                raise Undelivered(
                    f"The message broker took no notification: {transport.failure}"
                ) from transport.failure
        metrics.count(metrics.NOTIFICATIONS_SENT, event_type=notification.event_type)
        LOG.debug("Sent %s %s", notification.event_type, notification.uuid)

    def _open(self) -> tuple[_NoticeTransport, Any]:
        if self._transport is None:
            # Without this default, oslo.messaging would use its own common exchange.
            messaging.TransportURL.parse(self._conf)  # registers the option
            self._conf.set_default("control_exchange", EXCHANGE)
            self._transport = _NoticeTransport(messaging.get_notification_transport(self._conf))
            # The work is tried again anyway, so the library need not retry for long.
            self._notifier = messaging.Notifier(self._transport, self._publisher, retry=1)
        return self._transport, self._notifier


class _NoticeTransport(NotificationTransport):
    """Keeps the error of a failed send, which the library's drivers only log."""

    def __init__(self, plain: Any) -> None:
        super().__init__(plain._driver)  # noqa: SLF001 - as the library's own factory does
        self.failure: Exception | None = None

    def _send_notification(self, *args: Any, **kwargs: Any) -> None:
        try:
            super()._send_notification(*args, **kwargs)
        except Exception as exc:  # noqa: BLE001 - raised again in Sender._send
            self.failure = exc


def _payload(notification: models.Notification) -> dict[str, Any]:
    occurred = datetime.datetime.fromtimestamp(notification.occurred_ms / 1000, datetime.UTC)
    common = {
        "notification_id": notification.uuid,
        "occurred_at": occurred.isoformat(timespec="milliseconds"),
        "request_id": notification.request_id,
    }
    said = dict(notification.payload)
    said["cyborg_object.data"] = common | said["cyborg_object.data"]
    return said


def _oldest() -> list[models.Notification]:
    row = models.Notification
    return db.read_all(sa.select(row).order_by(row.id).limit(_BATCH))


@db.retry
def _forget(sent: list[models.Notification]) -> None:
    row = models.Notification
    if sent:
        # By uuid too: SQLite may give the id of a deleted row to a new one.
        own = (row.id.in_([one.id for one in sent]), row.uuid.in_([one.uuid for one in sent]))
        with db.writer() as session:
            db.delete(session, row, *own)
