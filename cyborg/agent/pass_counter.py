# SPDX-License-Identifier: Apache-2.0
"""The counter of an agent's discovery passes, which orders its reports."""

from __future__ import annotations

import threading
from collections.abc import Callable


class PassCounter:
    """Counts passes when they begin.

    A change that was made before :attr:`value` is read may be missing in the report of the pass
    with that number, and is in the reports of all later ones. ``look_now`` starts the next pass.
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
