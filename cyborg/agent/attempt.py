# SPDX-License-Identifier: Apache-2.0
"""Calls of code that may fail or hang, in daemon threads which may outlive their caller."""

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

#: Seconds that a call may keep those waiting which are to be made after it.
_SLOW = 0.25


class Attempt(Generic[T]):
    """One call of ``function``. When :meth:`done`, ``value`` is its answer unless ``error``."""

    def __init__(self, name: str, function: Callable[[], T]) -> None:
        self.value: T | None = None
        self.error: str | None = "The driver ended without an answer"
        self._name = name
        self._function = function
        self._ended = threading.Event()

    def start(self) -> Attempt[T]:
        """Make the call at once, in a thread of its own."""
        _thread(self._name, self.make)
        return self

    def done(self, timeout: float) -> bool:
        """Whether the call has returned, waiting at most ``timeout`` seconds for it."""
        return self._ended.is_set() or (timeout > 0 and self._ended.wait(timeout))

    def make(self) -> None:
        """Make the call in this thread."""
        try:
            self.value = self._function()
            self.error = None
        except Exception as exc:
            LOG.warning("%s failed", self._name, exc_info=True)
            self.error = f"{type(exc).__name__}: {exc}"[:_SENTENCE_MAX]
        finally:
            self._ended.set()


def each(
    purpose: str, calls: Mapping[str, Callable[[], T]], timeout: float
) -> dict[str, Attempt[T]]:
    """Make all the calls, and return when each has returned or has had ``timeout`` seconds.

    One thread makes them in turn, as most take no time. If it takes long over one, or ends with
    it, another thread goes on with the rest: none waits long for another.
    """
    attempts = {name: Attempt(f"{purpose}-{name}", call) for name, call in calls.items()}
    waiting = collections.deque(attempts.values())
    while waiting:
        _thread(purpose, _make_each, waiting).join(_SLOW)
    deadline = time.monotonic() + timeout
    for attempt in attempts.values():
        attempt.done(deadline - time.monotonic())
    return attempts


def _make_each(waiting: collections.deque[Attempt[T]]) -> None:
    while waiting:
        try:
            attempt = waiting.popleft()
        except IndexError:
            return  # another thread has taken the last one
        attempt.make()


def _thread(name: str, target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    thread.start()
    return thread
