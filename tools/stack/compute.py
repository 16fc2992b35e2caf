#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nova-compute whose guests are fake, and whose start of a guest a test may fail or hold up.

The directory that CYBORG_STACK_FAULTS names is shared by all hosts. Each file in it whose name
begins with ``fail`` fails one spawn, whichever comes first, and Nova tries another host. While the
file ``hold`` is there, spawns wait.
"""

from __future__ import annotations

# isort: off
# First of all, because it decides what Nova's threads are.
from nova.cmd import compute
# isort: on

import os
import sys
import time
from pathlib import Path
from typing import Any

from nova import exception
from nova.virt import fake

#: What the option compute_driver calls it.
NAME = "fake.StackDriver"
#: Seconds after which a spawn waits no longer, whatever a test has left behind.
_LONGEST_HOLD = 240.0


class StackDriver(fake.FakeDriverWithoutFakeNodes):
    """Nova's fake driver, with faults."""

    def spawn(self, context: Any, instance: Any, *arguments: Any, **more: Any) -> None:
        """Start a guest that is none, unless a file says otherwise."""
        faults = Path(os.environ["CYBORG_STACK_FAULTS"])
        deadline = time.monotonic() + _LONGEST_HOLD
        while (faults / "hold").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        if any(_consumed(file) for file in sorted(faults.glob("fail*"))):
            raise exception.ComputeResourcesUnavailable(reason="a test wants it so")
        super().spawn(context, instance, *arguments, **more)


def _consumed(file: Path) -> bool:
    """Whether it was this host that removed the file."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


if __name__ == "__main__":
    # Nova looks for drivers among its own modules only.
    fake.StackDriver = StackDriver
    sys.argv[0] = "nova-compute"
    sys.exit(compute.main())
