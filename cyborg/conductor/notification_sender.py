# SPDX-License-Identifier: Apache-2.0
"""The part of a conductor that sends recorded notifications, if notifications are configured."""

from __future__ import annotations

from collections.abc import Callable

from oslo_config import cfg

from cyborg import notifications, process
from cyborg.conductor import worker
from cyborg.notifications import sender


class NotificationSender:
    """Looks for recorded notifications, and lets the worker send them."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._wanted = notifications.wanted(conf)
        self._sender = sender.Sender(conf)
        self._loop = process.Loop("notifications", self._look)
        self._kick: Callable[[], None] = self.wake

    @property
    def handlers(self) -> dict[str, worker.Handler]:
        """The handler that sends, by its kind of work; none if notifications are off."""
        return {notifications.KIND: self._sender.send_all} if self._wanted else {}

    def start(self, kick: Callable[[], None]) -> None:
        """Look now, after each commit that recorded a notification, and at each poll interval.

        ``kick`` wakes the worker.
        """
        self._kick = kick
        if self._wanted:
            notifications.wake_after_commit(self.wake)
            self._loop.start()

    def wake(self) -> None:
        """Look now."""
        self._loop.wake()

    def stop(self) -> None:
        """Stop looking. What the worker is sending goes on."""
        if self._wanted:
            self._loop.stop(grace=2.0)

    def close(self) -> None:
        """Close the connection to the broker."""
        self._sender.close()

    def _look(self) -> float:
        if notifications.look():
            self._kick()
        return float(self._conf.conductor.poll_interval)
