# SPDX-License-Identifier: Apache-2.0
"""The clock of permits to write.

It is the same in all processes of a host, nobody sets it, and it goes on while the host sleeps.
"""

from __future__ import annotations

import time


def clock() -> float:
    """Seconds since the host was booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def is_over(until: float) -> bool:
    """True if a permit that is good until then is too old to begin to write."""
    return clock() >= until
