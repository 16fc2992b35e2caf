# SPDX-License-Identifier: Apache-2.0
"""One call of code that may fail or hang, in a daemon thread which may outlive its caller."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_SENTENCE_MAX = 1000


class Attempt(Generic[T]):
    """Calls ``function`` at once. When :meth:`done`, ``value`` is its answer unless ``error``."""

    def __init__(self, name: str, function: Callable[[], T]) -> None:
        self.value: T | None = None
        self.error: str | None = "The driver ended without an answer"
        self._thread = threading.Thread(
            target=self._run, args=(function,), name=name, daemon=True
        )
        self._thread.start()

    def done(self, timeout: float) -> bool:
        """Whether the call has returned, waiting at most ``timeout`` seconds for it."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self.value = function()
            self.error = None
        except Exception as exc:
            LOG.warning("%s failed", threading.current_thread().name, exc_info=True)
            self.error = f"{type(exc).__name__}: {exc}"[:_SENTENCE_MAX]
