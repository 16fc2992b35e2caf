# SPDX-License-Identifier: Apache-2.0
"""The count of an agent's discovery passes, which tells old reports from new ones."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Counter:
    """Counts passes by their beginnings.

    What has changed when :attr:`value` is read may be missing in the report of a pass of that
    number and is in those of all later ones. ``look_now`` lets the next one begin soon.
    """

    def __init__(self, look_now: Callable[[], None]) -> None:
        self.look_now = look_now
        self._lock = threading.Lock()
        self._value = 0

    @property
    def value(self) -> int:
        """The number of the pass that began last."""
        return self._value

    def begin(self) -> int:
        """Begin another pass, and return its number."""
        with self._lock:
            self._value += 1
            return self._value
