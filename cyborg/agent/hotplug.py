# SPDX-License-Identifier: Apache-2.0
"""Hot-plug: an event of the kernel starts a discovery pass, and means nothing more.

The change itself is only read from sysfs: when the event of a virtual function arrives, half of its
attributes do not exist yet. If an event is lost, the periodic pass finds the change.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import time
from collections.abc import Callable

import pyudev

from cyborg import process

LOG = logging.getLogger(__name__)

#: Seconds between the first event and the pass, which also covers the events between.
DELAY = 0.5
#: Subsystems with accelerators and the files that drivers read. Network interfaces are not among
#: them, as every guest that starts or stops has events of those.
_SUBSYSTEMS = ("pci", "mdev", "nvme", "fpga", "fpga_region", "dfl", "uacce", "vfio-dev")
#: Seconds before a monitor that failed is replaced. Each pause is twice as long as the last.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


class EventWatcher:
    """Calls ``look`` within a second after an event of a device.

    It is called once for all events of :data:`DELAY` seconds. Events that never stop do not delay
    it.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._monitor: pyudev.Monitor | None = None
        self._due = math.inf
        self._pause = _FIRST_PAUSE
        self._stop, self._stopped = socket.socketpair()
        self._loop = process.Loop("hotplug", self._step)

    def start(self) -> None:
        """Listen from now on. A first attempt is made before this returns."""
        self._listen()
        self._loop.start()

    def stop(self) -> None:
        """Stop listening."""
        self._stop.close()
        self._loop.stop()

    def _step(self) -> float:
        """Wait for one event, or until it is time to look; return how long to pause then."""
        if self._monitor is None:
            # Events from before it listened are lost, so it is time to look.
            self._due = time.monotonic() if self._listen() else math.inf
        pause = 0.0 if self._wait() else self._next_pause()
        if time.monotonic() >= self._due:
            self._due = math.inf
            self._look()
        return pause

    def _listen(self) -> bool:
        try:
            monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
            for subsystem in _SUBSYSTEMS:
                monitor.filter_by(subsystem)
            monitor.start()
        except Exception as exc:  # noqa: BLE001 - libudev fails in many ways, or is absent
            self._give_up(exc)
            return False
        self._monitor = monitor
        self._pause = _FIRST_PAUSE
        return True

    def _wait(self) -> bool:
        """Wait for one event until it is time to look; False if there is no monitor."""
        if self._monitor is None:
            return False
        waiting = select.poll()
        for source in (self._monitor, self._stopped):
            waiting.register(source, select.POLLIN)
        left = max(0.0, self._due - time.monotonic())
        waiting.poll(None if left == math.inf else math.ceil(left * 1000))
        try:
            if self._monitor.poll(0) is not None:
                self._due = min(self._due, time.monotonic() + DELAY)
        except OSError as exc:
            self._give_up(exc)
            return False
        return True

    def _give_up(self, exc: Exception) -> None:
        """Drop the monitor; another is made after a pause."""
        LOG.warning("No event of a device can be received; the periodic pass goes on: %s", exc)
        self._monitor = None

    def _next_pause(self) -> float:
        """The pause before the next monitor, twice as long as the last."""
        pause = self._pause
        self._pause = min(pause * 2, _LONGEST_PAUSE)
        return pause
