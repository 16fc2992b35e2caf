# SPDX-License-Identifier: Apache-2.0
"""Queues of DSA and IAA in sysfs, as in ``drivers/dma/idxd/sysfs.c`` and ``device.c``."""

from __future__ import annotations

import errno
import os

from cyborg.tests.simulated.files import Files

_DEVICES, _DRIVERS = "bus/dsa/devices", "bus/dsa/drivers"
#: A queue that is not configured.
_CLEAR = {
    "group_id": -1,
    "mode": "shared",
    "size": 0,
    "priority": 0,
    "threshold": 0,
    "type": "none",
    "name": "",
    "driver_name": "",
}
#: What can be written of queues and engines.
ATTRIBUTES = frozenset(_CLEAR)


def offer(files: Files) -> None:
    """The drivers of queues are there as soon as a device is."""
    for driver in ("idxd", "user"):
        for name in ("bind", "unbind"):
            files.put(f"{_DRIVERS}/{driver}/{name}", "")


def configure(files: Files, place: str, name: str, text: str) -> None:
    """Write an attribute of a queue or an engine; what is enabled does not change."""
    device = os.path.dirname(place)
    if files.read(f"{device}/state") == "enabled":
        raise OSError(errno.EPERM, "the device is enabled")
    if name == "size":
        others = [each for each in _queues(files, device) if each != os.path.basename(place)]
        used = sum(int(files.read(f"{device}/{each}/size")) for each in others)
        if used + int(text) > int(files.read(f"{device}/max_work_queues_size")):
            raise OSError(errno.EINVAL, "too few entries")
    if name == "group_id" and int(text) >= int(files.read(f"{device}/max_groups")):
        raise OSError(errno.EINVAL, "no such group")
    if name == "threshold" and files.read(f"{place}/mode") == "dedicated":
        raise OSError(errno.EINVAL, "the queue is dedicated")
    files.put(f"{place}/{name}", text)


def bind(files: Files, driver: str, name: str) -> None:
    """Enable a device, or a queue for user space."""
    place = files.real(f"{_DEVICES}/{name}")
    if driver == "idxd":
        files.put(f"{place}/state", "enabled")
        return
    device = os.path.dirname(place)
    shown = {each: files.read(f"{place}/{each}") for each in _CLEAR}
    engines = [each for each in files.names(device) if each.startswith("engine")]
    groups = {files.read(f"{device}/{each}/group_id") for each in engines}
    whole = shown["name"] and shown["size"] != "0" and shown["group_id"] in groups
    shared = shown["mode"] == "dedicated" or shown["threshold"] != "0"
    is_user = shown["type"] == shown["driver_name"] == driver
    if not (whole and shared and is_user and files.read(f"{device}/state") == "enabled"):
        raise OSError(errno.EINVAL, "the queue is not configured")
    kind = os.path.basename(device).rstrip("0123456789")
    files.put(f"{place}/{kind}!{name}/uevent", f"MAJOR=237\nMINOR=0\nDEVNAME={kind}/{name}")
    files.put(f"{place}/state", "enabled")


def unbind(files: Files, name: str) -> None:
    """Disable a device: its queues lose all that was configured."""
    device = files.real(f"{_DEVICES}/{name}")
    files.put(f"{device}/state", "disabled")
    for queue in _queues(files, device):
        place = f"{device}/{queue}"
        for each in files.names(place):
            if "!" in each:
                files.drop(f"{place}/{each}")
        for each, value in {**_CLEAR, "state": "disabled"}.items():
            files.put(f"{place}/{each}", value)


def _queues(files: Files, device: str) -> list[str]:
    return [each for each in files.names(device) if each.startswith("wq")]
