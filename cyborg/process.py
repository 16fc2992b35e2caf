# SPDX-License-Identifier: Apache-2.0
"""Hosting a service in a process: signals, threads that repeat something, a bounded stop."""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

LOG = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Service(Protocol):
    """A part of a process. Both methods return soon; ``stop`` follows every ``start``."""

    def start(self) -> None:
        """Begin to work, in threads of its own."""

    def stop(self) -> None:
        """Begin nothing new, and finish or give back what is under way."""


def run(services: Sequence[Service], *, grace: float = 30.0) -> None:
    """Run services until SIGTERM or SIGINT, then stop them, the last one first.

    A second signal, or ``grace`` seconds, ends the process as it stands: everything that matters
    is in the database.
    """
    # Putting into this queue is the one way to wake a thread that is safe in a signal handler.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda received, _frame: signals.put(received))
    started: list[Service] = []
    try:
        for service in services:
            service.start()
            started.append(service)
        LOG.info("Stopping on %s", signal.Signals(signals.get()).name)
    finally:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        _leave_after(grace)
        for service in reversed(started):
            service.stop()


def _leave_after(grace: float) -> None:
    """See to it that the process ends: libraries join their threads at exit without a limit."""

    def leave() -> None:
        LOG.warning("Not everything has stopped in %s seconds; leaving all the same", grace)
        logging.shutdown()
        sys.stdout.flush()
        os._exit(1)

    timer = threading.Timer(grace, leave)
    timer.daemon = True
    timer.start()


class Loop:
    """A thread that calls ``step`` again and again.

    ``step`` returns the seconds to wait before the next call; :meth:`wake` ends the wait. What it
    raises is logged, and it is called again after ``pause`` seconds.
    """

    def __init__(self, name: str, step: Callable[[], float], *, pause: float = 1.0) -> None:
        self._step = step
        self._pause = pause
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Make the first call now."""
        self._thread.start()

    def wake(self) -> None:
        """Make the next call now."""
        self._woken.set()

    def stop(self, grace: float = 5.0) -> None:
        """Make no further call, and wait for the one under way for ``grace`` seconds at most."""
        self._stopping.set()
        self._woken.set()
        self._thread.join(grace)

    def _run(self) -> None:
        while not self._stopping.is_set():
            # Cleared before the call: who wakes us during it means one more.
            self._woken.clear()
            try:
                delay = self._step()
            except Exception:
                LOG.exception("%s met a fault and goes on", self._thread.name)
                delay = self._pause
            if not self._stopping.is_set():
                self._woken.wait(delay)
