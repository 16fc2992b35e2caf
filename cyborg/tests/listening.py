# SPDX-License-Identifier: Apache-2.0
"""Somebody who listens to notifications as billing and monitoring do, with oslo.messaging."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import oslo_messaging as messaging
import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, notifications, work
from cyborg.db import models
from cyborg.notifications import notices, sender
from cyborg.tests import engine, messages

_owners = itertools.count()


@dataclass(frozen=True, slots=True)
class Heard:
    """A notification as its listener gets it."""

    priority: str
    publisher: str
    event: str
    payload: dict[str, Any]
    #: ``message_id`` and ``timestamp``, which the library adds.
    metadata: dict[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        """The fields of the payload."""
        data: dict[str, Any] = self.payload["cyborg_object.data"]
        return data


class Ear:
    """Hears every notification that is sent over the transport of a configuration."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.conf = conf
        self.heard: list[Heard] = []
        topic = f"notifications-{uuid.uuid4().hex}"
        notifications.wanted(conf)  # registers the options
        conf.set_override("driver", ["messagingv2"], group=notifications.GROUP)
        conf.set_override("topics", [topic], group=notifications.GROUP)
        self._target = messaging.Target(exchange=sender.EXCHANGE, topic=topic)
        self._listener: Any = None

    def listen(self, url: str | None = None) -> None:
        """Begin to hear, over another way to the broker if one is named."""
        transport = messaging.get_notification_transport(self.conf, url=url)
        self._listener = messaging.get_notification_listener(
            transport, [self._target], [self], executor="threading"
        )
        # One thread: several would append what arrives at once in any order.
        self._listener.start(override_pool_size=1)

    def stop(self) -> None:
        """Hear no more."""
        if self._listener is not None:
            self._listener.stop()
            self._listener.wait()

    def info(self, *said: Any) -> None:
        """What oslo.messaging calls for this priority."""
        self._hear("INFO", *said)

    def warn(self, *said: Any) -> None:
        """The same."""
        self._hear("WARN", *said)

    def error(self, *said: Any) -> None:
        """The same."""
        self._hear("ERROR", *said)

    def _hear(self, priority: str, _ctxt: Any, publisher: str, event: str, *said: Any) -> None:
        self.heard.append(Heard(priority, publisher, event, *said))

    @property
    def events(self) -> list[str]:
        """What was heard, in order."""
        return [one.event for one in self.heard]


#: All kinds of notification.
EVENTS = [each for each in vars(notices).values() if isinstance(each, notices.NoticeKind)]


def silence() -> None:
    """Have this process announce nothing any more."""
    notifications._process = notifications._Process()


@contextlib.contextmanager
def ear(conf: cfg.ConfigOpts, transport: str) -> Iterator[Ear]:
    """Let everything be announced over that transport, and listen to it."""
    with messages.transport(conf, transport):
        one = Ear(conf)
        notifications.configure(conf)
        one.listen()
        try:
            yield one
        finally:
            silence()
            one.stop()


def send(conf: cfg.ConfigOpts) -> None:
    """Send what is to be announced, as a conductor does, in this thread."""
    sending = sender.Sender(conf)
    try:
        while notifications.look():
            item = engine.take(f"sender#{next(_owners)}", 30.0, [notifications.KIND])
            assert item is not None
            sending.send_all(item)
            work.finish(item)
    finally:
        # In memory, closing would throw away what is not heard yet.
        if messaging.TransportURL.parse(conf).transport != "fake":
            sending.close()


def recorded() -> list[str]:
    """What is still to be sent, in order."""
    row = models.Notification
    with db.reader() as session:
        return list(session.scalars(sa.select(row.event_type).order_by(row.id)))


@pytest.fixture
def announcing(conf: cfg.ConfigOpts) -> Iterator[None]:
    """Announcements are wanted; nobody sends them."""
    Ear(conf)
    notifications.configure(conf)
    yield
    silence()
