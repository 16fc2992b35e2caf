# SPDX-License-Identifier: Apache-2.0
"""Whether this process can reach its database, said once when that changes."""

from __future__ import annotations

import logging
import threading

LOG = logging.getLogger(__name__)


class Outage:
    """Begins and ends in many threads at a time, and is told once each time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lasts = False

    def begin(self) -> None:
        """The database cannot be reached. The log adds the exception that is being handled."""
        with self._lock:
            is_new, self._lasts = not self._lasts, True
        if is_new:
            LOG.warning("The database cannot be reached; nothing more is said until it answers")

    def end(self) -> None:
        """The database has answered."""
        if not self._lasts:
            return
        with self._lock:
            was, self._lasts = self._lasts, False
        if was:
            LOG.info("The database answers again")
