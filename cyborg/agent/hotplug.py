# SPDX-License-Identifier: Apache-2.0
"""Hot-plug: the kernel's events mean that it is time to look again, and nothing more.

What has changed is only ever read from sysfs: when the event of a virtual function arrives, half
of its attributes are not there yet. Events that are lost are made good by the periodic pass.
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

#: Seconds between the first event and the look, for one look at whatever follows meanwhile.
DELAY = 0.5
#: Where accelerators and what drivers read of them are. Of network interfaces every guest that
#: comes or goes makes some, so they are not among them.
_SUBSYSTEMS = ("pci", "mdev", "nvme", "fpga", "fpga_region", "dfl", "uacce", "vfio-dev")
#: Seconds before a monitor that failed is made anew; each further pause is twice as long.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


class Watcher:
    """Calls ``look`` within a second after the kernel has told of a device.

    However many events there are, it is called once for all of :data:`DELAY` seconds, and a storm
    that does not end does not put it off.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._monitor: pyudev.Monitor | None = None
        self._due = math.inf
        self._pause = _FIRST_PAUSE
        self._stop, self._stopped = socket.socketpair()
        self._loop = process.Loop("hotplug", self._step)

    def start(self) -> None:
        """Listen from now on, if it is possible: a first attempt is made before this returns."""
        self._listen()
        self._loop.start()

    def stop(self) -> None:
        """Listen no more."""
        self._stop.close()
        self._loop.stop()

    def _step(self) -> float:
        """Wait for one event, or for the time to look."""
        if self._monitor is None:
            # What happened while nobody listened has told nobody.
            self._due = time.monotonic() if self._listen() else math.inf
        pause = 0.0 if self._wait() else self._pause
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
        except Exception as exc:  # noqa: BLE001 - of libudev, or that there is none
            self._give_up(exc)
            return False
        self._monitor = monitor
        self._pause = _FIRST_PAUSE
        return True

    def _wait(self) -> bool:
        """Take in one event, if one comes before it is time to look; False where none can."""
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
        """Have the monitor made anew after a while."""
        LOG.warning("No event of a device can be received; the periodic pass goes on: %s", exc)
        self._monitor = None
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
