#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nova-compute with fake guests; tests can make the start of a guest fail or wait.

All hosts share the directory that CYBORG_STACK_FAULTS names. Each file in it whose name begins
with ``fail`` makes the next spawn fail, so that Nova tries another host. While the file ``hold``
exists, spawns wait.
"""

from __future__ import annotations

# isort: off
# Imported first, because it selects the kind of Nova's threads.
from nova.cmd import compute
# isort: on

import os
import sys
import time
from pathlib import Path
from typing import Any

from nova import exception
from nova.virt import fake

#: Its name in the option compute_driver.
NAME = "fake.StackDriver"
#: Maximum seconds that a spawn waits, in case a test leaves the file behind.
_LONGEST_HOLD = 240.0


class StackDriver(fake.FakeDriverWithoutFakeNodes):
    """Nova's fake driver, with faults."""

    def spawn(self, context: Any, instance: Any, *arguments: Any, **more: Any) -> None:
        """Start a fake guest, unless a file in the directory makes it fail or wait."""
        faults = Path(os.environ["CYBORG_STACK_FAULTS"])
        deadline = time.monotonic() + _LONGEST_HOLD
        while (faults / "hold").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        if any(_consumed(file) for file in sorted(faults.glob("fail*"))):
            raise exception.ComputeResourcesUnavailable(reason="a test made it fail")
        super().spawn(context, instance, *arguments, **more)


def _consumed(file: Path) -> bool:
    """Remove the file; whether this host was the one to remove it."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


if __name__ == "__main__":
    # Nova finds drivers in its own modules only.
    fake.StackDriver = StackDriver
    sys.argv[0] = "nova-compute"
    sys.exit(compute.main())
