# SPDX-License-Identifier: Apache-2.0
"""Calls of code that may fail or hang, in daemon threads that may outlive their caller."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_SENTENCE_MAX = 1000

#: Seconds that one call may delay the calls that wait for the same thread.
_SLOW = 0.25


class BackgroundCall(Generic[T]):
    """One call of ``function``. When :meth:`done`, ``value`` is its answer unless ``error``."""

    def __init__(self, name: str, function: Callable[[], T]) -> None:
        self.value: T | None = None
        self.error: str | None = "The driver ended without an answer"
        self._name = name
        self._function = function
        self._has_ended = False
        # Held until the call has returned: a pass makes many calls, and a lock is cheaper than an
        # event.
        self._running = threading.Lock()
        self._running.acquire()

    def start(self) -> BackgroundCall[T]:
        """Start the call in a thread of its own."""
        _thread(self._name, self.run)
        return self

    def done(self, timeout: float) -> bool:
        """True if the call has returned, waiting at most ``timeout`` seconds for it."""
        # Of several threads that ask at once, each that has the lock keeps it from the others.
        if not self._has_ended and self._running.acquire(timeout=max(0.0, timeout)):
            self._running.release()
        return self._has_ended

    def run(self) -> None:
        """Make the call in this thread."""
        try:
            self.value = self._function()
            self.error = None
        except Exception as exc:
            LOG.warning("%s failed", self._name, exc_info=True)
            self.error = f"{type(exc).__name__}: {exc}"[:_SENTENCE_MAX]
        finally:
            self._has_ended = True
            self._running.release()


def call_all(
    purpose: str, functions: Mapping[str, Callable[[], T]], timeout: float
) -> dict[str, BackgroundCall[T]]:
    """Call all functions, and wait until each has returned or has had ``timeout`` seconds.

    One thread makes the calls in turn, as most take no time. If one call is slow, or ends the
    thread, another thread makes the remaining ones: no call waits long for another.
    """
    calls = {name: BackgroundCall(f"{purpose}-{name}", each) for name, each in functions.items()}
    waiting = collections.deque(calls.values())
    while waiting:
        _thread(purpose, _run_waiting, waiting).join(_SLOW)
    deadline = time.monotonic() + timeout
    for call in calls.values():
        call.done(deadline - time.monotonic())
    return calls


def _run_waiting(waiting: collections.deque[BackgroundCall[T]]) -> None:
    while waiting:
        try:
            call = waiting.popleft()
        except IndexError:
            return  # another thread has taken the last one
        call.run()


def _thread(name: str, target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    thread.start()
    return thread
