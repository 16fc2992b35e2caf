# SPDX-License-Identifier: Apache-2.0
"""Waiting for what has to become true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

#: Seconds for the cloud to start, on a busy machine.
START_SECONDS = 240.0

T = TypeVar("T")


class Failed(Exception):
    """Why the cloud cannot be tested, as a sentence."""


def until(what: str, find: Callable[[], T], seconds: float = START_SECONDS) -> T:
    """Call ``find`` until it returns something true; return that."""
    deadline = time.monotonic() + seconds
    while not (found := find()):
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not in {seconds:.0f} seconds")
        time.sleep(0.1)
    return found
