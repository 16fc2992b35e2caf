# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH112, PTH120, PTH208
# pathlib takes several times as long, and a host has hundreds of mounts.
"""Which PCI functions the host itself uses, for its file systems and its networks.

A mounted file system is followed through volumes and RAID down to its disks, and a network
interface with an address through bridges and bonds down to its ports. A function of which that
cannot be told must not pass for a free one.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import itertools
import os
import re
import socket
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from cyborg.drivers.pci import sysfs

_NETS = "/sys/class/net"
_BLOCKS = "/sys/class/block"
#: Links to the same block devices by their numbers.
_NUMBERS = "/sys/dev/block"
_BTRFS = "/sys/fs/btrfs"
#: What the kernel's own targets show over the network: NVMe-oF, and SCSI by iSCSI or iSER.
_NVMET = "/sys/kernel/config/nvmet/subsystems"
_SCSI_TARGETS = "/sys/kernel/config/target/core"
_MOUNTS = "/proc/self/mountinfo"
_ROUTES = "/proc/net/route"
_IPV6 = "/proc/net/if_inet6"
_SWAPS = "/proc/swaps"
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

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """The host's uses of functions, by address.

    ``unknown`` are functions of which that cannot be told, each with what cannot be read; ``doubt``
    is what cannot be read, if that may be about any other function, and ``network_doubt`` if it may
    be about any that is no disk's.
    """

    used: Mapping[str, str]
    unknown: Mapping[str, str] = field(default_factory=dict)
    doubt: str | None = None
    network_doubt: str | None = None
    #: What requests have.
    held: Collection[str] = ()

    def of(self, address: str, *, is_disks: bool = False) -> str | None:
        """The host's use of a function, or None. ``is_disks``: it controls disks.

        :raises OSError: that cannot be told
        """
        use = self.used.get(address)
        of_any = self.doubt if is_disks else self.doubt or self.network_doubt
        doubt = self.unknown.get(address, of_any)
        if use is None and doubt is not None:
            raise OSError(doubt)
        return use


def read(ports: Mapping[str, str] = MappingProxyType({})) -> Uses:
    """The functions that the host uses, each with the reason.

    ``ports`` are the functions of network interfaces, by name, as far as functions show them.
    """
    finder = _UseFinder(ports)
    finder.look_at_networks()
    # Doubts about disks are other ones.
    of_networks, finder.doubt = finder.doubt, None
    finder.look_at_disks()
    return replace(finder.found(), network_doubt=of_networks)


def volumes() -> Uses:
    """The functions with a disk that is part of a volume or RAID, each with the disk.

    A volume need not be mounted: virtual machines and storage daemons use volumes directly.
    """
    finder = _UseFinder({})
    finder.look_at_volumes()
    return finder.found()


class _UseFinder:
    """Goes from what is in use to the functions below. What it cannot follow it notes."""

    def __init__(self, ports: Mapping[str, str]) -> None:
        self._ports = ports
        self._used: dict[str, str] = {}
        self._unknown: dict[str, str] = {}
        self.doubt: str | None = None

    def found(self) -> Uses:
        """The uses that have been found so far."""
        return Uses(used=self._used, unknown=self._unknown, doubt=self.doubt)

    def look_at_networks(self) -> None:
        """Interfaces with an address or a route, and those that something is built on."""
        for listed in (_routed, _addressed):
            with self._noting():
                for name in sorted(set(listed())):
                    reason = f"the host's network interface {name} is on it"
                    self._interface(name, reason, set())
        names = set(self._ports)
        with self._noting():
            names.update(os.listdir(_NETS))
        for name in sorted(names):
            # The interfaces of cards below it have it as "master" or "upper_".
            if name not in self._ports and "/virtual/" in sysfs.target(f"{_NETS}/{name}"):
                continue
            addresses = self._of_interface(name)
            with self._noting(*addresses):
                built = _built_on(self._place(name))
                if built is not None:
                    self._use(addresses, f"its network interface {name} is {built}")

    def look_at_disks(self) -> None:
        """Disks that are mounted or swap, and those that are shown over the network."""
        for listed in (_mounts, _btrfs, _swaps, _exported):
            with self._noting():
                for where, places in sorted(listed()):
                    self._block_device(places, f"the host uses it for {where}", set())

    def look_at_volumes(self) -> None:
        """Disks that something is built on."""
        with self._noting():
            for name in sorted(os.listdir(_BLOCKS)):
                places = _named(name)
                place = _first(places)
                if place is None:
                    self._cannot_follow(places)
                elif _has_holders(place):
                    with self._noting():
                        self._use(_disk_functions(os.path.realpath(place)), name)

    def _interface(self, name: str, reason: str, seen: set[str]) -> None:
        if name in seen:
            return
        seen.add(name)
        addresses = self._of_interface(name)
        self._use(addresses, reason)
        place = self._place(name)
        try:
            below = sysfs.names(place) if os.path.lexists(place) else []
        except OSError as exc:
            # A card has no interfaces below its own.
            if not addresses:
                self.doubt = self.doubt or str(exc)
            return
        for lower in below:
            if lower.startswith("lower_"):
                self._interface(lower.removeprefix("lower_"), reason, seen)

    def _of_interface(self, name: str) -> list[str]:
        """The functions that an interface needs; none if it is no card's."""
        return [*_addresses(self._place(name)), *filter(None, [self._ports.get(name)])]

    def _place(self, name: str) -> str:
        """The directory of an interface, at its function if that shows it."""
        port = self._ports.get(name)
        return f"{_NETS}/{name}" if port is None else f"{sysfs.DEVICES}/{port}/net/{name}"

    def _block_device(self, places: Sequence[str], reason: str, seen: set[str]) -> None:
        """``places`` are the paths of one device; those that are not there do not matter."""
        place = _first(places)
        if place is None:
            self._cannot_follow(places)
            return
        real = os.path.realpath(place)
        if real in seen:
            return
        seen.add(real)
        with self._noting(*_addresses(real)):
            self._use(_disk_functions(real), reason)
            for below in _slaves(real):
                self._block_device(below, reason, seen)

    def _cannot_follow(self, places: Iterable[str]) -> None:
        """None of the paths leads to a device: it is gone, or where it is cannot be told."""
        broken = [place for place in places if os.path.lexists(place)]
        if broken:
            with self._noting(*itertools.chain.from_iterable(map(_addresses, broken))):
                raise OSError(f"{broken[0]} leads to no device")

    def _use(self, addresses: Iterable[str], reason: str) -> None:
        for address in addresses:
            self._used.setdefault(address, reason)

    @contextlib.contextmanager
    def _noting(self, *addresses: str) -> Iterator[None]:
        """Note what fails as a doubt about these functions; without any, about all."""
        try:
            yield
        except (OSError, ValueError, IndexError) as exc:
            self._unknown |= dict.fromkeys(addresses, str(exc))
            if not addresses:
                self.doubt = self.doubt or str(exc)


def _has_holders(place: str) -> bool:
    """True if a disk is part of something. One of which that cannot be read counts as such."""
    try:
        return bool(sysfs.names(f"{place}/holders"))
    except OSError:
        return True


def _slaves(place: str) -> Iterator[list[str]]:
    """The paths of each device that a block device consists of.

    :raises OSError: that cannot be told
    """
    # A partition has none of its own.
    folder = next((each for each in (place, os.path.dirname(place)) if _has_slaves(each)), place)
    for name in sorted(os.listdir(f"{folder}/slaves")):
        yield [f"{folder}/slaves/{name}", *_named(name)]


def _has_slaves(place: str) -> bool:
    return os.path.lexists(f"{place}/slaves")


def _named(name: str) -> list[str]:
    """The paths of a block device of which only the name is known."""
    place = f"{_BLOCKS}/{name}"
    if os.path.isdir(place) or "/" in name:
        return [place]
    numbers = (f"{_NUMBERS}/{number}" for number in sysfs.names(_NUMBERS))
    return [*(path for path in numbers if sysfs.link(path) == name), place]


def _numbered(number: str) -> list[str]:
    """The paths of a block device of which only the number is known."""
    place = f"{_NUMBERS}/{number}"
    if os.path.isdir(place):
        return [place]
    others = (f"{_BLOCKS}/{name}" for name in sysfs.names(_BLOCKS))
    return [*(path for path in others if sysfs.optional(f"{path}/dev") == number), place]


def _first(places: Iterable[str]) -> str | None:
    """The first of these paths that leads to a directory."""
    return next(filter(os.path.isdir, places), None)


def _routed() -> Iterator[str]:
    """Network interfaces with a route, or with an IPv6 address beyond their link."""
    # Until an interface is up, if only the loopback, the kernel has no table, and no heading.
    if any(_addressed()) or _lines(_ROUTES):
        yield from _parsed(_ROUTES, _below("Iface", _ROUTES), _route)
    # A kernel without IPv6 has no such file.
    with contextlib.suppress(FileNotFoundError):
        yield from filter(None, _parsed(_IPV6, _lines(_IPV6), _ipv6_address))


def _route(line: str) -> str:
    return line[: line.index("\t")]


def _ipv6_address(line: str) -> str | None:
    _address, _number, _prefix, scope, _flags, name = line.split(maxsplit=5)
    return None if scope in {"10", "20"} or name == "lo" else name  # the host, the link


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


def _built_on(place: str) -> str | None:
    """The host's use of an interface of a card that may have no address of its own, or None.

    :raises OSError: it cannot be read
    """
    links = sysfs.names(place)
    if "master" in links:
        return "a port of the host's"  # of a bridge, a bond or a switch
    upper = next((link for link in links if link.startswith("upper_")), None)
    return None if upper is None else f"below {upper.removeprefix('upper_')} of the host's"


def _mounts() -> Iterator[tuple[str, list[str]]]:
    """The places where file systems are mounted, each with the paths of its block device."""
    lines = _lines(_MOUNTS)
    if not lines:
        # Whoever can read it sees at least where it is mounted.
        raise ValueError(f"{_MOUNTS} is empty")
    yield from filter(None, _parsed(_MOUNTS, lines, _mount))


def _mount(line: str) -> tuple[str, list[str]] | None:
    before, _dash, after = line.partition(" - ")
    number, _root, where = before.split(" ")[2:5]
    source = after.split(" ")[1]
    if not number.startswith("0:"):
        return where, _numbered(number)
    if source.startswith("/dev/"):
        # A file system on several devices has a number of its own, and names one of them.
        return where, _named(source.removeprefix("/dev/"))
    return None


def _btrfs() -> Iterator[tuple[str, list[str]]]:
    """The mount table does not list all devices of a btrfs."""
    for fsid in sysfs.listing(_BTRFS):
        folder = f"{_BTRFS}/{fsid}/devices"
        for name in os.listdir(folder) if sysfs.UUID.fullmatch(fsid) else ():
            yield f"btrfs {fsid}", [f"{folder}/{name}", *_named(name)]


def _swaps() -> Iterator[tuple[str, list[str]]]:
    # A kernel without swap has no such file.
    with contextlib.suppress(FileNotFoundError):
        yield from _parsed(_SWAPS, _below("Filename", _SWAPS), _swap)


def _swap(line: str) -> tuple[str, list[str]]:
    return "swap", _named(line.split(maxsplit=1)[0].removeprefix("/dev/"))


def _exported() -> Iterator[tuple[str, list[str]]]:
    """The disks of the targets of this host's kernel."""
    for nqn in sysfs.names(_NVMET):
        folder = f"{_NVMET}/{nqn}"
        parts = [f"namespaces/{name}" for name in sysfs.names(f"{folder}/namespaces")]
        for part in (*parts, "passthru"):
            if name := _disk_in(f"{folder}/{part}/device_path"):
                places = _named(name) if part != "passthru" else [f"/sys/class/nvme/{name}"]
                yield f"NVMe-oF subsystem {nqn}", places
    for core in sysfs.names(_SCSI_TARGETS):
        for disk in sysfs.names(f"{_SCSI_TARGETS}/{core}"):
            if name := _disk_in(f"{_SCSI_TARGETS}/{core}/{disk}/udev_path"):
                yield f"SCSI target {core}/{disk}", _named(name)


def _disk_in(path: str) -> str | None:
    """The name of the device that a file names, or None if it names none, or a plain file."""
    named = sysfs.if_there(path) or ""
    return os.path.realpath(named).rpartition("/")[2] if named.startswith("/dev/") else None


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
    yield from [part for part in parts if sysfs.ADDRESS.fullmatch(part)][-1:]
    for part, below in itertools.pairwise(parts):
        if sysfs.ADDRESS.fullmatch(part) and _BUS.fullmatch(below):
            yield part


def _parsed(path: str, lines: Iterable[str], parse: Callable[[str], T]) -> Iterator[T]:
    """The meaning of each line of a file.

    :raises ValueError: one says nothing; the message names the file
    """
    for line in lines:
        try:
            found = parse(line)
        except (ValueError, IndexError):
            raise ValueError(f"{path} has a line {line[:40]!r}") from None
        yield found


def _below(heading: str, path: str) -> list[str]:
    """The lines of a table below its heading, which the kernel always writes.

    :raises OSError, ValueError: there are none
    """
    first, *rows = _lines(path) or [""]
    if not first.startswith(heading):
        raise ValueError(f"{path} does not begin with {heading}")
    return rows


def _lines(path: str) -> list[str]:
    """The lines of a file. Only a newline ends a line: names may have other separators in them."""
    return [line for line in sysfs.text(path).split("\n") if line]
