# SPDX-License-Identifier: Apache-2.0
"""What the host itself uses: below which PCI functions its file systems and its networks are.

A mounted file system is followed through volumes and RAID down to the devices it lies on, a
network interface with an address through bridges and bonds down to its ports.
"""

from __future__ import annotations

import itertools
import pathlib
import re
from collections.abc import Iterator, Mapping

_SYS = pathlib.Path("/sys")
_PROC = pathlib.Path("/proc")
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: The root of a bus: of the host's, or of one that a controller has behind it.
_BUS = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
#: A controller: one of several ways to the namespaces of its subsystem.
_CONTROLLER = re.compile(r"nvme\d+")


def read() -> Mapping[str, str]:
    """The addresses of functions that must stay with the host, each with the reason.

    :raises OSError: it cannot be told what is mounted
    """
    uses: dict[str, str] = {}
    for name in sorted(set(_routed())):
        for address in _of_interface(name, set()):
            uses.setdefault(address, f"the host's network interface {name} is on it")
    for name in _ports():
        for address in _addresses(_SYS / "class/net" / name):
            uses.setdefault(address, f"its network interface {name} is a port of the host's")
    for name, where in sorted(set(_mounted())):
        for address in _of_block_device(name, set()):
            uses.setdefault(address, f"the host uses it for {where}")
    return uses


def _routed() -> Iterator[str]:
    """Network interfaces with a route or with an address beyond their link."""
    for line in _lines("net/route")[1:]:
        yield line.split()[0]
    for line in _lines("net/if_inet6"):
        _address, _number, _prefix, scope, _flags, name = line.split()
        if scope not in {"10", "20"} or name == "lo":  # the host, the link
            yield name


def _ports() -> Iterator[str]:
    """Network interfaces that belong to a bridge, a bond or a switch of the host."""
    try:
        names = sorted(path.name for path in (_SYS / "class/net").iterdir())
    except FileNotFoundError:
        return
    for name in names:
        if (_SYS / "class/net" / name / "master").exists():
            yield name


def _of_interface(name: str, seen: set[str]) -> Iterator[str]:
    path = _SYS / "class/net" / name
    if name in seen or not path.exists():
        return
    seen.add(name)
    yield from _addresses(path)
    for lower in sorted(path.glob("lower_*")):
        yield from _of_interface(lower.name.removeprefix("lower_"), seen)


def _mounted() -> Iterator[tuple[str, str]]:
    """Block devices with what they are used for."""
    for line in (_PROC / "self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _dash, after = line.partition(" - ")
        number, _root, where = before.split()[2:5]
        source = after.split()[1]
        by_number = _SYS / "dev/block" / number
        if by_number.exists():
            yield by_number.resolve().name, where
        elif number.startswith("0:") and source.startswith("/dev/"):
            # A file system with several devices has a number of its own; it tells one of them.
            yield source.removeprefix("/dev/"), where
    # Which devices a btrfs has, its mounts do not tell.
    for device in (_SYS / "fs/btrfs").glob("*/devices/*"):
        yield device.name, f"btrfs {device.parts[-3]}"
    for line in _lines("swaps")[1:]:
        yield line.split()[0].removeprefix("/dev/"), "swap"


def _of_block_device(name: str, seen: set[str]) -> Iterator[str]:
    path = _SYS / "class/block" / name
    if name in seen or not path.exists():
        return
    seen.add(name)
    real = path.resolve()
    yield from _addresses(real)
    for parent in (real, real.parent):  # a partition and its disk
        if (parent / "slaves").is_dir():
            for slave in sorted((parent / "slaves").iterdir()):
                yield from _of_block_device(slave.name, seen)
    if "nvme-subsystem" in real.parts:
        subsystem = real.parents[len(real.parts) - real.parts.index("nvme-subsystem") - 3]
        for way in sorted(subsystem.iterdir()):
            if _CONTROLLER.fullmatch(way.name):
                yield from _addresses(way)


def _addresses(path: pathlib.Path) -> Iterator[str]:
    """The PCI functions without which the path is gone, but for ports: they are the bus's.

    One is its parent. Another may have the parent's whole bus behind it, as Intel's VMD has.
    """
    parts = path.resolve().parts
    yield from [part for part in parts if _ADDRESS.fullmatch(part)][-1:]
    for part, below in itertools.pairwise(parts):
        if _ADDRESS.fullmatch(part) and _BUS.fullmatch(below):
            yield part


def _lines(path: str) -> list[str]:
    try:
        return (_PROC / path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
