# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH110, PTH115, PTH120
# pathlib takes several times as long, and a host has hundreds of mounts.
"""Which PCI functions the host itself uses, for its file systems and its networks.

A mounted file system is followed through volumes and RAID down to its disks, and a network
interface with an address through bridges and bonds down to its ports.
"""

from __future__ import annotations

import array
import fcntl
import itertools
import os
import re
import socket
import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from cyborg.drivers.pci import sysfs

_NETS = "/sys/class/net"
_BLOCKS = "/sys/class/block"
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: The root of a PCI bus: the host's, or one behind a controller.
_BUS = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
#: An NVMe controller: one of several paths to the namespaces of its subsystem.
_CONTROLLER = re.compile(r"nvme\d+")
#: SIOCGIFCONF of <linux/sockios.h>: get all IPv4 addresses.
_GET_ADDRESSES = 0x8912
#: Its argument: the size of a buffer, and its address.
_BUFFER = struct.Struct("iP")
#: What it writes for each address; only the label is read.
_ROW = struct.Struct("16s24x")


def read(
    ports: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The addresses of functions that the host uses, each with the reason.

    ``ports`` are the functions of network interfaces, by name, for those of which the list of all
    interfaces knows no place. The second mapping of the answer has those of which that cannot be
    told, each with what cannot be read.

    :raises OSError: the mounts cannot be read
    """
    uses: dict[str, str] = {}
    unknown: dict[str, str] = {}
    interfaces = sysfs.names(_NETS)
    for name in sorted({*_routed(), *_addressed()}):
        for address in _of_interface(name, ports, set()):
            uses.setdefault(address, f"the host's network interface {name} is on it")
    for name in interfaces:
        try:
            reason = _built_on(name)
        except OSError as exc:
            unknown |= dict.fromkeys(_addresses(f"{_NETS}/{name}"), str(exc))
            continue
        for address in _addresses(f"{_NETS}/{name}") if reason is not None else ():
            uses.setdefault(address, f"its network interface {name} is {reason}")
    for name, where in sorted(set(_mounted())):
        for address in _of_block_device(name, set()):
            uses.setdefault(address, f"the host uses it for {where}")
    return uses, unknown


def volumes() -> Mapping[str, str]:
    """The addresses of functions with a disk that is part of a volume or RAID, each with the disk.

    A volume need not be mounted: virtual machines and storage daemons use volumes directly.
    """
    found: dict[str, str] = {}
    for name in sysfs.names(_BLOCKS):
        if _has_holders(name):
            for address in _disk_functions(os.path.realpath(f"{_BLOCKS}/{name}")):
                found.setdefault(address, name)
    return found


def _has_holders(name: str) -> bool:
    """Whether a disk is part of something. One of which that cannot be read counts as such."""
    try:
        return bool(sysfs.names(f"{_BLOCKS}/{name}/holders"))
    except OSError:
        return True


def _routed() -> Iterator[str]:
    """Network interfaces with a route, or with an IPv6 address beyond their link."""
    for line in _lines("net/route")[1:]:
        yield line.partition("\t")[0]
    for line in _lines("net/if_inet6"):
        _address, _number, _prefix, scope, _flags, name = line.split(maxsplit=5)
        if scope not in {"10", "20"} or name == "lo":  # the host, the link
            yield name


def _addressed() -> Iterator[str]:
    """Network interfaces with an IPv4 address, with a route or without."""
    size = filled = 64 * _ROW.size
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        # A full buffer may not have all of them.
        while filled == size:
            size *= 2
            rows = array.array("B", bytes(size))
            request = _BUFFER.pack(size, rows.buffer_info()[0])
            filled, _ = _BUFFER.unpack(fcntl.ioctl(any_socket, _GET_ADDRESSES, request))
    for (label,) in _ROW.iter_unpack(rows[:filled]):
        # An address may have a label of its own: eth0:1.
        yield os.fsdecode(label.partition(b"\0")[0].partition(b":")[0])


def _built_on(name: str) -> str | None:
    """How the host uses an interface of a card that may have no address of its own, or None."""
    path = f"{_NETS}/{name}"
    try:
        is_virtual = "/virtual/" in os.readlink(path)
    except OSError:
        return None  # it is gone, or is no interface
    if is_virtual:
        return None  # the interfaces of cards below it have it as "master" or "upper_"
    links = sysfs.names(path)
    if "master" in links:
        return "a port of the host's"  # of a bridge, a bond or a switch
    upper = next((link for link in links if link.startswith("upper_")), None)
    return None if upper is None else f"below {upper.removeprefix('upper_')} of the host's"


def _of_interface(name: str, ports: Mapping[str, str], seen: set[str]) -> Iterator[str]:
    path = f"{_NETS}/{name}"
    if name in seen:
        return
    seen.add(name)
    if os.path.realpath(path) == path:  # it is no link, or is not there
        yield from filter(None, [ports.get(name)])
        return
    yield from _addresses(path)
    for lower in sysfs.names(path):
        if lower.startswith("lower_"):
            yield from _of_interface(lower.removeprefix("lower_"), ports, seen)


def _mounted() -> Iterator[tuple[str, str]]:
    """Block devices, each with its use."""
    for line in _lines_of(sysfs.text("/proc/self/mountinfo")):
        before, _dash, after = line.partition(" - ")
        number, _root, where = before.split(" ")[2:5]
        if not number.startswith("0:"):
            device = sysfs.link_if_there(f"/sys/dev/block/{number}")
            if device is not None:
                yield device, where
            continue
        source = after.split(" ")[1]
        if source.startswith("/dev/"):
            # A file system on several devices has a number of its own, and names one of them.
            yield source.removeprefix("/dev/"), where
    # The mount table does not list all devices of a btrfs.
    for fsid in sysfs.names("/sys/fs/btrfs"):
        for name in sysfs.names(f"/sys/fs/btrfs/{fsid}/devices"):
            yield name, f"btrfs {fsid}"
    for line in _lines("swaps")[1:]:
        yield line.split()[0].removeprefix("/dev/"), "swap"


def _of_block_device(name: str, seen: set[str]) -> Iterator[str]:
    path = f"{_BLOCKS}/{name}"
    if name in seen or not os.path.exists(path):
        return
    seen.add(name)
    real = os.path.realpath(path)
    yield from _disk_functions(real)
    for place in (real, os.path.dirname(real)):  # a partition and its disk
        for slave in sysfs.names(f"{place}/slaves"):
            yield from _of_block_device(slave, seen)


def _disk_functions(disk: str) -> Iterator[str]:
    """The PCI functions of a disk's controllers. ``disk`` is its real path in sysfs."""
    yield from _addresses(disk)
    before, subsystem, below = disk.partition("/nvme-subsystem/")
    if subsystem:
        shared = f"{before}{subsystem}{below.partition('/')[0]}"
        for name in sysfs.names(shared):
            if _CONTROLLER.fullmatch(name):
                yield from _addresses(f"{shared}/{name}")


def _addresses(path: str) -> Iterator[str]:
    """The PCI functions that the path needs, without the bus's own ports.

    One is its parent. Another may have the parent's whole bus behind it, as Intel's VMD has.
    """
    parts = os.path.realpath(path).split("/")
    yield from [part for part in parts if _ADDRESS.fullmatch(part)][-1:]
    for part, below in itertools.pairwise(parts):
        if _ADDRESS.fullmatch(part) and _BUS.fullmatch(below):
            yield part


def _lines(path: str) -> list[str]:
    try:
        return _lines_of(sysfs.text(f"/proc/{path}"))
    except FileNotFoundError:
        return []


def _lines_of(table: str) -> list[str]:
    """The lines of a table. Only a newline ends a line: names may have other separators in them."""
    return [line for line in table.split("\n") if line]
