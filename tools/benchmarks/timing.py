# SPDX-License-Identifier: Apache-2.0
"""What the two scripts that make passes have in common."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

#: The one reads no hardware, the other asks a server over the network.
NOT_OF_PCI = {"fake_driver", "nvmf_spdk_driver"}


def seconds(call: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and processor time of a call, with that of its child processes."""
    wall, before = time.perf_counter(), _used()
    call()
    return time.perf_counter() - wall, _used() - before


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
