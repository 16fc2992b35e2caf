# SPDX-License-Identifier: Apache-2.0
"""Whether this process can reach its database, said once when that changes."""

from __future__ import annotations

import logging
import threading
import time

LOG = logging.getLogger(__name__)


class Outage:
    """Begins and ends in many threads at a time, and is told once each time.

    Whatever was under way while it began or ended says nothing of what is so now.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lasts = False
        #: When the database was last found to be away, and to answer, by the monotonic clock.
        self._failed = self._answered = 0.0

    def begin(self, started: float) -> None:
        """What was started then has failed. The log adds the exception that is being handled."""
        with self._lock:
            is_new = not self._lasts and started >= self._answered
            self._lasts = self._lasts or is_new
            self._failed = time.monotonic()
        if is_new:
            LOG.warning("The database cannot be reached; nothing more is said until it answers")

    def end(self, started: float) -> None:
        """What was started then has had its answer."""
        if not self._lasts:
            self._answered = time.monotonic()
            return
        with self._lock:
            is_over = self._is_over(started)
            if is_over:
                self._lasts, self._answered = False, time.monotonic()
        if is_over:
            LOG.info("The database answers again")

    def _is_over(self, started: float) -> bool:
        return self._lasts and started > self._failed
