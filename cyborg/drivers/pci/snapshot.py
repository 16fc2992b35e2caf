# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH110, PTH115, PTH208
# pathlib takes several times as long, and a pass reads thousands of files.
"""The PCI functions of a host, read into values that never change.

The walk of the bus (:mod:`cyborg.drivers.pci.walk`) reads the few facts that drivers match on. Any
other file of a function is read when a driver first asks for it, and has the same text for every
driver until the pass ends.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from cyborg.drivers.pci import host_use, product_names, quiet_use, sysfs
from cyborg.drivers.pci.sysfs import DEVICES

#: Classes of functions that can have disks or networks of the host: storage and network
#: controllers, SD hosts, and buses such as USB, Fibre Channel and InfiniBand.
_HOST_CLASSES = ("01", "02", "0805", "0c")
#: Those that have no networks.
_DISKS = ("01", "0805")
#: Bridges, of the kinds that lead to other functions: of the host, ISA, PCI, CardBus, and
#: semi-transparent ones. The switch of an HGX board (0680) is an end point.
_BRIDGES = ("0600", "0601", "0604", "0607", "0609")
BRIDGE = "06"
#: The offset of the header type in PCI configuration space, its bits, and those of end points and
#: of bridges: to PCI and to CardBus.
_HEADER_TYPE, _HEADER_MASK, _END_POINT_HEADER, _BRIDGE_HEADERS = 0x0E, 0x7F, 0, (1, 2)

#: Reasons to keep a function that the operator can lift.
BOOTED_WITH = "it is the graphics card that the host was booted with"
FAR_DOMAIN = "guests have no PCI domain above ffff"

T = TypeVar("T")
#: Facts of a function by their names; None for those that the kernel does not show.
Facts = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One PCI function. Hexadecimal numbers are in lower case, padded, without ``0x``.

    ``pf`` is the address of a virtual function's physical function; ``vfs`` are the addresses of a
    physical function's virtual functions that are enabled now. ``netdevs`` are names of network
    interfaces.
    """

    address: str
    vendor: str
    device: str
    subsystem_vendor: str
    subsystem_device: str
    class_code: str
    driver: str | None = None
    numa_node: int | None = None
    pf: str | None = None
    vfs: tuple[str, ...] = ()
    sriov_totalvfs: int = 0
    iommu_group: str | None = None
    boot_vga: bool = False
    netdevs: tuple[str, ...] = ()

    @property
    def has_guest_driver(self) -> bool:
        """True if it is bound to a driver that gives functions to guests, such as vfio-pci."""
        return self.driver is not None and "vfio" in self.driver


#: The ids of a function, and its class.
IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class_code")
ids_of: Callable[[Function], tuple[str, ...]] = operator.attrgetter(*IDS)


class Vanished(LookupError):
    """The function was there at the walk and is gone now."""


class Details:
    """The source of files that are read after the walk: this host's sysfs.

    A path is relative to the function, or begins with ``/`` if the file is elsewhere.
    """

    def read(self, address: str, path: str) -> str:
        """The text of a file.

        :raises OSError: it does not exist or cannot be read
        """
        return sysfs.text(_below(address, path))

    def names(self, address: str, path: str) -> Iterable[str]:
        """The names in a directory.

        :raises OSError: it does not exist or cannot be read
        """
        place = _below(address, path)
        try:
            return os.listdir(place)
        except FileNotFoundError:
            sysfs.check_no_link(place)
            raise

    def exists(self, address: str) -> bool:
        """True if the function is still there."""
        return os.path.exists(f"{DEVICES}/{address}")

    def location(self, address: str) -> str:
        """The path of the function's directory, with those of the bridges above it.

        :raises OSError: it cannot be read
        """
        return os.readlink(f"{DEVICES}/{address}")

    def product(self, vendor: str, device: str) -> str | None:
        """The name of a product, or None if it is not known."""
        return product_names.find(vendor, device)


class Snapshot(Mapping[str, Function]):
    """Every function of a host by its address, in the order of addresses.

    A file is read once. :class:`Vanished` is raised for a function that is gone. ``faults`` has a
    sentence for each function that could not be read: those are not in the snapshot, and what is
    known of them stays as it is.
    """

    def __init__(
        self,
        found: Iterable[Function],
        details: Details | None = None,
        used: Mapping[str, str] | None = None,
        volumes: Mapping[str, str] | None = None,
        faults: Mapping[str, str] = MappingProxyType({}),
        doubtful: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.faults = faults
        self._doubtful = doubtful
        self._unread: set[str] = set(faults)
        self._partly_read: set[str] = set()
        self._functions = {function.address: function for function in found}
        self._details = details or Details()
        #: Those that programs of the host have open though no request has them.
        self.opened: Callable[[], host_use.Uses] = lambda: host_use.Uses(used={})
        self._uses = host_use.Uses(used=used) if used is not None else None
        self._volumes = host_use.Uses(used=volumes) if volumes is not None else None
        self._texts: dict[tuple[str, str], str | OSError] = {}
        self._names: dict[tuple[str, str], tuple[str, ...]] = {}
        self._cached: dict[object, Any] = {}
        self._product = functools.cache(self._details.product)
        self._vanished: set[str] = set()

    def __getitem__(self, address: str) -> Function:
        return self._functions[address]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    @property
    def unread(self) -> frozenset[str]:
        """Functions of which nothing can be said in this pass."""
        return frozenset(self._unread)

    def give_up(self, function: Function) -> None:
        """Say nothing about a card in this pass: a driver cannot read something of it."""
        card = self.get(function.pf or "", function)
        self._unread |= {function.address, card.address, *card.vfs}

    def is_partly_read(self, function: Function) -> bool:
        """True if a file of the function exists and could not be read."""
        return function.address in self._partly_read

    def of_vendor(self, vendor: str) -> Sequence[Function]:
        """The functions of one vendor."""
        return self._by_vendor.get(vendor, ())

    @functools.cached_property
    def _by_vendor(self) -> Mapping[str, Sequence[Function]]:
        return self._by(operator.attrgetter("vendor"))

    @functools.cached_property
    def by_ids(self) -> Mapping[tuple[str, ...], Sequence[Function]]:
        """The functions of each product, by what :data:`ids_of` says of them."""
        return self._by(ids_of)

    def of_group(self, group: str) -> Sequence[Function]:
        """The functions of an IOMMU group."""
        return self._by_group.get(group, ())

    @functools.cached_property
    def _by_group(self) -> Mapping[str, Sequence[Function]]:
        return self._by(operator.attrgetter("iommu_group"))

    def _by(self, key: Callable[[Function], T]) -> dict[T, list[Function]]:
        found: dict[T, list[Function]] = {}
        for function in self._functions.values():
            found.setdefault(key(function), []).append(function)
        return found

    def check_group(self, function: Function) -> None:
        """Raise OSError if a function that may be of its IOMMU group cannot be read."""
        keys = (f"group {function.iommu_group}", f"slot {slot(function.address)}")
        for sentence in filter(None, map(self._doubtful.get, keys)):
            raise OSError(f"Its IOMMU group is not known: {sentence}")
        for each in self.of_group(function.iommu_group or ""):
            if each.address in self._unread and each.address != function.address:
                raise OSError(f"{each.address} of its IOMMU group cannot be read")

    def required_state(self, address: str, path: str, known: Collection[str]) -> str:
        """The word in a file that the driver needs, in lower case; it is one of ``known``.

        :raises OSError: it cannot be read
        :raises ValueError: it holds another text
        """
        text = self.required(address, path)
        if text.lower() not in known:
            raise ValueError(f"{path} of {address} holds no state: {text[:40]!r}")
        return text.lower()

    def text(self, address: str, path: str) -> str | None:
        """The text of a file below the function, or None if the kernel does not show it."""
        read = self._text(address, path)
        return read if isinstance(read, str) else None

    def required(self, address: str, path: str) -> str:
        """The text of a file that the driver needs.

        :raises OSError: it cannot be read
        """
        read = self._text(address, path)
        if isinstance(read, OSError):
            raise OSError(read.errno, f"{path} of {address} cannot be read: {read.strerror}")
        return read

    def if_there(self, address: str, path: str) -> str | None:
        """The text of a file that not every function has; None if it does not exist.

        :raises OSError: it cannot be read
        """
        read = self._text(address, path)
        if isinstance(read, str):
            return read
        if isinstance(read, (FileNotFoundError, NotADirectoryError)):
            return None
        return self.required(address, path)

    def required_number(self, address: str, path: str) -> int:
        """The number in a file that the driver needs.

        :raises OSError: it cannot be read
        :raises ValueError: it holds no number
        """
        text = self.required(address, path)
        try:
            return int(text, 0)
        except ValueError:
            raise ValueError(f"{path} of {address} holds no number: {text[:40]!r}") from None

    def number(self, address: str, path: str) -> int | None:
        """The number in a file, decimal or with a prefix such as ``0x``, or None if it has none."""
        try:
            return int(self.text(address, path) or "", 0)
        except ValueError:
            return None

    def names(self, address: str, path: str) -> tuple[str, ...]:
        """The sorted names in a directory below the function; none if it does not exist.

        :raises OSError: it cannot be read, or is a link that leads nowhere
        """
        key = (address, path)
        known = self._names.get(key)
        if known is None:
            self._must_not_have_vanished(address)
            try:
                names = tuple(sorted(self._details.names(address, path)))
            except (FileNotFoundError, NotADirectoryError):
                names = ()
                self._must_exist(address)
            known = self._names.setdefault(key, names)
        return known

    def bridges(self, function: Function) -> tuple[str, ...]:
        """The addresses of the bridges above a function, the one next to the processor first."""
        try:
            *above, _own = self._details.location(function.address).split("/")
        except OSError:
            return ()
        return tuple(name for name in above if sysfs.ADDRESS.fullmatch(name))

    def product(self, function: Function) -> str | None:
        """The name under which the card is sold, or None if the system does not know it."""
        return self._product(function.vendor, function.device)

    def cached(self, read: Callable[[Function, Snapshot], T], function: Function) -> T:
        """The answer of ``read`` for a function, which is called once a pass."""
        key = (read, function.address)
        if key not in self._cached:
            self._cached[key] = read(function, self)
        answer: T = self._cached[key]
        return answer

    def made(self, make: Callable[[Snapshot], T]) -> T:
        """The answer of ``make`` for all functions, which is called once a pass."""
        if make not in self._cached:
            self._cached[make] = make(self)
        answer: T = self._cached[make]
        return answer

    def use(self, function: Function) -> str | None:
        """The host's own use of the function, or None.

        :raises OSError: that cannot be told
        """
        if self._uses is None:
            ports = {name: each.address for each in self.values() for name in each.netdevs}
            self._uses = host_use.read(ports)
        return self._uses.of(
            function.address, is_disks=function.class_code.startswith(_DISKS)
        )

    def quiet_use(self, function: Function) -> str | None:
        """The host's use of a function that shows no address, no mount and no holder, or None.

        :raises OSError: that cannot be told
        """
        if function.driver is None or function.has_guest_driver:
            return None
        return quiet_use.of(
            function.address,
            function.driver,
            in_user_space=self._in_user_space,
            lent=self.lent(function),
        )

    def lent(self, function: Function) -> str | None:
        """The part of a network card that is in another network namespace, or None.

        :raises OSError: that cannot be told
        """
        is_port = function.class_code.startswith("02") and function.driver is not None
        return self.cached(_lent, function) if is_port and not function.has_guest_driver else None

    @functools.cached_property
    def _in_user_space(self) -> frozenset[str]:
        return quiet_use.in_user_space()

    def volume(self, function: Function) -> str | None:
        """A disk of the function that is part of a volume or RAID of the host, mounted or not.

        :raises OSError: that cannot be told
        """
        if self._volumes is None:
            self._volumes = host_use.volumes()
        return self._volumes.of(function.address)

    def _text(self, address: str, path: str) -> str | OSError:
        key = (address, path)
        known = self._texts.get(key)
        if known is None:
            text: str | OSError
            self._must_not_have_vanished(address)
            try:
                text = _plain(self._details.read(address, path))
            except OSError as exc:
                text = exc
                self._must_exist(address)
                if not isinstance(exc, FileNotFoundError):
                    self._partly_read.add(address)
            known = self._texts.setdefault(key, text)
        return known

    def _must_not_have_vanished(self, address: str) -> None:
        if address in self._vanished:
            raise Vanished(f"PCI function {address} is gone since the walk")

    def _must_exist(self, address: str) -> None:
        if not self._details.exists(address):
            self._vanished.add(address)
        self._must_not_have_vanished(address)


def _lent(function: Function, _functions: Snapshot) -> str | None:
    return quiet_use.lent(function.address, has_interface=bool(function.netdevs))


def once(read: Callable[[Function, Snapshot], T]) -> Callable[[Function, Snapshot], T]:
    """Call ``read`` once a pass for each function. Its answer must not be changed."""

    @functools.wraps(read)
    def cached(function: Function, functions: Snapshot) -> T:
        return functions.cached(read, function)

    return cached


def split(address: str) -> dict[str, str]:
    """The parts of an address, with Nova's keys of an attach handle."""
    domain, bus, rest = address.split(":")
    device, function = rest.split(".")
    return {"domain": domain, "bus": bus, "device": device, "function": function}


def join(parts: Mapping[str, str]) -> str:
    """The address with these parts."""
    return f"{parts['domain']}:{parts['bus']}:{parts['device']}.{parts['function']}"


def slot(address: str) -> str:
    """The part of an address that all functions of a card have."""
    return address.rpartition(".")[0]


def can_carry(function: Function) -> bool:
    """True if disks or networks of the host can be on the function."""
    return function.class_code.startswith(_HOST_CLASSES)


def is_bridge(function: Function) -> bool:
    """True if other functions are behind the function.

    :raises OSError: that cannot be told
    """
    if not function.class_code.startswith(BRIDGE):
        return False
    if function.class_code.startswith(_BRIDGES):
        return True
    path = f"{DEVICES}/{function.address}/config"
    header = sysfs.beginning(path, _HEADER_TYPE + 1)[_HEADER_TYPE:]
    kind = header[0] & _HEADER_MASK if header else None
    if kind not in {_END_POINT_HEADER, *_BRIDGE_HEADERS}:
        # A function that does not answer has all bits set.
        raise OSError(f"{path} does not tell whether other functions are behind it")
    return kind in _BRIDGE_HEADERS


def reason_to_keep(
    function: Function, functions: Snapshot, *, listed: bool = False, far: bool = False
) -> str | None:
    """Why a function must stay with the host, even if the operator lists it, or None.

    ``listed`` says that the operator does, and ``far`` that it is with its domain written in full.

    :raises OSError: that cannot be told
    """
    if is_bridge(function):
        return "it is a bridge"
    # A host without a screen needs none, and firmware names one all the same.
    if function.boot_vga and not (listed and function.has_guest_driver):
        return BOOTED_WITH
    if len(split(function.address)["domain"]) > 4 and not far:
        return FAR_DOMAIN
    use = functions.use(function) if can_carry(function) else None
    if use is not None:
        return use
    opened = functions.opened()
    quiet = None if function.address in opened.held else functions.quiet_use(function)
    return quiet or opened.of(function.address)


def _plain(text: str) -> str:
    """The text without characters that no database stores: NUL and undecodable bytes."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    if "\0" in text:
        text = text.replace("\0", "")
    return text.strip()


def _below(address: str, path: str) -> str:
    return path if path.startswith("/") else f"{DEVICES}/{address}/{path}"
