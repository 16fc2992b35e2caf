# SPDX-License-Identifier: Apache-2.0
"""PCI functions of a simulated host, as pyudev lists them and hears of them."""

from __future__ import annotations

import pathlib
import time

import pyudev


def functions() -> dict[str, tuple[str, str | None]]:
    devices = pyudev.Context().list_devices(subsystem="pci")
    return {
        device.sys_name: (device.properties["PCI_ID"], device.properties.get("DRIVER"))
        for device in devices
    }


def listen(ready: str, last: str) -> list[tuple[str, str]]:
    """The events of functions from the making of the file ``ready`` to the first of ``last``."""
    monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
    monitor.filter_by("pci")
    monitor.start()
    pathlib.Path(ready).touch()
    seen: list[tuple[str, str]] = []
    deadline = time.monotonic() + 180
    while not any(action == last for action, _ in seen) and time.monotonic() < deadline:
        # An event of another subsystem, as of a mount anywhere on the machine, ends a poll too.
        device = monitor.poll(timeout=1)
        if device is not None:
            seen.append((device.action, device.sys_name))
    return seen
