# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH115, PTH208
# pathlib takes several times as long, and a host has tens of thousands of open files.
"""Which processes have device nodes, open or by their environment.

No node is opened for that: no guest could open it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import time
from collections.abc import Collection

#: The most seconds for a look at all processes.
_PATIENCE = 5.0


def holders(nodes: Collection[str], likely: Collection[int] = ()) -> dict[str, tuple[int, str]]:
    """A process that has each of the nodes open, if any has: its number and name.

    The ``likely`` processes are looked at first: it ends when all nodes are found.

    :raises OSError: the processes cannot be listed, or there are too many
    """
    found: dict[str, tuple[int, str]] = {}
    deadline = time.monotonic() + _PATIENCE
    numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    for number in sorted(numbers, key=lambda each: each not in likely):
        if len(found) == len(nodes):
            break
        if time.monotonic() > deadline:
            raise OSError(errno.ETIME, f"the files of {len(numbers)} processes take too long")
        for node in _open_files(number) & set(nodes) - found.keys():
            found[node] = (number, _name(number))
    return found


def guests(instances: Collection[str]) -> dict[str, list[str]]:
    """The files below /dev/vfio that these guests have open, of those that run and show it.

    libvirt starts a guest with its instance's uuid among the arguments of the process.
    """
    found: dict[str, list[str]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")) if instances else ():
        try:
            words = pathlib.Path(f"/proc/{name}/cmdline").read_text(errors="replace").split("\0")
        except OSError:
            continue  # it has ended
        instance = words[words.index("-uuid") + 1] if "-uuid" in words[:-1] else ""
        if instance in instances and (files := _open_files(int(name))):
            found[instance] = sorted(each for each in files if "/vfio/" in each)
    return found


def containers(handle: str) -> list[str]:
    """The processes whose environment has a variable that is named after an attach handle.

    Whatever starts a container gives it such variables with the nodes of the handle.
    """
    ending = f"_{handle.replace('-', '_').upper()}=".encode()
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if ending in pathlib.Path(f"/proc/{name}/environ").read_bytes():
                found.append(f"{name} ({_name(int(name))})")
    return found


def _open_files(number: int) -> set[str]:
    """The open files of a process; none of one that has ended, or that we must not look at."""
    folder = f"/proc/{number}/fd"
    targets: set[str] = set()
    try:
        names = os.listdir(folder)
    except OSError:
        return targets
    for name in names:
        # One may have been closed meanwhile; the others count.
        with contextlib.suppress(OSError):
            targets.add(os.readlink(f"{folder}/{name}"))
    return targets


def _name(number: int) -> str:
    try:
        name = pathlib.Path(f"/proc/{number}/comm").read_text(errors="replace")
    except OSError:
        return "?"
    return "".join(filter(str.isprintable, name))
