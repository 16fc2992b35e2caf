# SPDX-License-Identifier: Apache-2.0
"""The part of a conductor that sends what is to be announced, where others are to be told."""

from __future__ import annotations

from collections.abc import Callable

from oslo_config import cfg

from cyborg import notifications, process
from cyborg.conductor import worker
from cyborg.notifications import sender


class Announcer:
    """Looks whether anything is to be announced, and has the worker send it."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._wanted = notifications.wanted(conf)
        self._sender = sender.Sender(conf)
        self._loop = process.Loop("announce", self._look)
        self._kick: Callable[[], None] = self.wake

    @property
    def handlers(self) -> dict[str, worker.Handler]:
        """The function that sends, by its kind of work; none where nobody is to be told."""
        return {notifications.KIND: self._sender.send_all} if self._wanted else {}

    def start(self, kick: Callable[[], None]) -> None:
        """Look now, and whenever something was written or the time has come.

        ``kick`` tells the worker that there is something to send.
        """
        self._kick = kick
        if self._wanted:
            notifications.wake_after_commit(self.wake)
            self._loop.start()

    def wake(self) -> None:
        """Look now."""
        self._loop.wake()

    def stop(self) -> None:
        """Look no more; what the worker sends it may finish."""
        if self._wanted:
            self._loop.stop(grace=2.0)

    def close(self) -> None:
        """Close the connection to the broker."""
        self._sender.close()

    def _look(self) -> float:
        if notifications.look():
            self._kick()
        return float(self._conf.conductor.poll_interval)
