# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH110, PTH208
# pathlib takes several times as long, and a pass reads thousands of files.
"""What PCI functions a host has: one walk by pyudev, read into values that never change.

The walk reads the few facts by which drivers choose. What else sysfs shows of a function is read
when a driver first asks for it, and is the same for every driver of the pass from then on.
"""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyudev

from cyborg.drivers import host_use, pci_ids, sysfs

_DEVICES = "/sys/bus/pci/devices"
#: Classes of what disks or networks can be below: their controllers, SD hosts, and buses such as
#: USB, Fibre Channel and InfiniBand.
_CARRIERS = ("01", "02", "0805", "0c")
_BRIDGES = "06"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One PCI function. Hexadecimal numbers are in lower case, padded, without ``0x``.

    ``pf`` is the address of a virtual function's physical one, ``vfs`` those of its virtual ones
    that are enabled now. ``netdevs`` are names of network interfaces.
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


class Vanished(LookupError):
    """The function was there at the walk and is gone now."""


class Details(Protocol):
    """Where the facts beyond the walk come from.

    A path is relative to the function, or begins with ``/`` where they are kept elsewhere.
    """

    def read(self, address: str, path: str) -> str:
        """The text of a file.

        :raises OSError: there is none, or it cannot be read
        """

    def names(self, address: str, path: str) -> Iterable[str]:
        """What is in a directory.

        :raises OSError: there is none, or it cannot be read
        """

    def exists(self, address: str) -> bool:
        """Whether the function is still there."""

    def product(self, vendor: str, device: str) -> str | None:
        """What people call a product, where that is known."""


class Snapshot(Mapping[str, Function]):
    """Every function of a host by its address, in the order of addresses.

    What was read once stays the same. :class:`Vanished` is raised for a function that is gone.
    """

    def __init__(
        self,
        found: Iterable[Function],
        details: Details | None = None,
        used: Mapping[str, str] | None = None,
        volumes: Mapping[str, str] | None = None,
    ) -> None:
        self._functions = {function.address: function for function in found}
        self._details = details or _Tree()
        self._used = used
        self._volumes = volumes
        self._texts: dict[tuple[str, str], str | OSError] = {}
        self._names: dict[tuple[str, str], tuple[str, ...]] = {}
        self._told: dict[tuple[object, str], Any] = {}
        self._products: dict[tuple[str, str], str | None] = {}
        self._vanished: set[str] = set()
        self._by_vendor: Mapping[str, Sequence[Function]] | None = None

    def __getitem__(self, address: str) -> Function:
        return self._functions[address]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def of_vendor(self, vendor: str) -> Sequence[Function]:
        """The functions of one vendor."""
        if self._by_vendor is None:
            found: dict[str, list[Function]] = {}
            for function in self._functions.values():
                found.setdefault(function.vendor, []).append(function)
            self._by_vendor = found
        return self._by_vendor.get(vendor, ())

    def text(self, address: str, path: str) -> str | None:
        """What a file below the function says, or None where the kernel does not show it."""
        read = self._text(address, path)
        return read if isinstance(read, str) else None

    def required(self, address: str, path: str) -> str:
        """What a file says without which nothing can be told.

        :raises OSError: it cannot be read
        """
        read = self._text(address, path)
        if isinstance(read, OSError):
            raise OSError(read.errno, f"{path} of {address} cannot be read: {read.strerror}")
        return read

    def number(self, address: str, path: str) -> int | None:
        """The number, in any notation, that a file says."""
        try:
            return int(self.text(address, path) or "", 0)
        except ValueError:
            return None

    def names(self, address: str, path: str) -> tuple[str, ...]:
        """What a directory below the function holds, sorted; nothing where there is none."""
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

    def product(self, function: Function) -> str | None:
        """The name under which the card is sold, where the system's ``pci.ids`` has it."""
        key = (function.vendor, function.device)
        if key not in self._products:
            self._products[key] = self._details.product(*key)
        return self._products[key]

    def told(self, tell: Callable[[Function, Snapshot], T], function: Function) -> T:
        """What ``tell`` tells of a function, asked once a pass."""
        key = (tell, function.address)
        if key not in self._told:
            self._told[key] = tell(function, self)
        answer: T = self._told[key]
        return answer

    def use(self, function: Function) -> str | None:
        """What the host itself uses the function for, or None."""
        if self._used is None:
            self._used = host_use.read()
        return self._used.get(function.address)

    def volume(self, function: Function) -> str | None:
        """A disk below the function on which the host has a volume or a RAID, mounted or not."""
        if self._volumes is None:
            self._volumes = host_use.volumes()
        return self._volumes.get(function.address)

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
            known = self._texts.setdefault(key, text)
        return known

    def _must_not_have_vanished(self, address: str) -> None:
        if address in self._vanished:
            raise Vanished(f"PCI function {address} is gone since the walk")

    def _must_exist(self, address: str) -> None:
        if not self._details.exists(address):
            self._vanished.add(address)
        self._must_not_have_vanished(address)


def once(
    tell: Callable[[Function, Snapshot], T],
) -> Callable[[Function, Snapshot], T]:
    """Let what is told of a function be found out once a pass; nobody may change it."""

    @functools.wraps(tell)
    def told(function: Function, functions: Snapshot) -> T:
        return functions.told(tell, function)

    return told


def split(address: str) -> dict[str, str]:
    """The parts of an address as Nova wants them in an attach handle."""
    domain, bus, rest = address.split(":")
    device, function = rest.split(".")
    return {"domain": domain, "bus": bus, "device": device, "function": function}


def join(place: Mapping[str, str]) -> str:
    """The address whose parts these are."""
    return f"{place['domain']}:{place['bus']}:{place['device']}.{place['function']}"


def can_carry(function: Function) -> bool:
    """Whether disks or networks of the host can be below the function."""
    return function.class_code.startswith(_CARRIERS)


def reason_to_keep(function: Function, functions: Snapshot) -> str | None:
    """Why a function must stay with the host whatever the operator lists, or None."""
    if function.class_code.startswith(_BRIDGES):
        return "it is a bridge"
    if function.boot_vga:
        return "it is the graphics card that the host was booted with"
    if len(split(function.address)["domain"]) > 4:
        return "guests have no PCI domain above ffff"
    if can_carry(function):
        return functions.use(function)
    return None


def scan() -> Snapshot:
    """Read every PCI function of this host.

    :raises OSError: something could not be read, so what is absent need not be gone
    """
    bus = pathlib.Path(_DEVICES).parent.parent
    if not bus.is_dir():
        raise OSError(f"{bus} is absent: sysfs is not mounted")
    expected = _listed()
    found = {device.sys_name for device in _context().list_devices(subsystem="pci")}
    overlooked = [name for name in expected - found if os.path.exists(f"{_DEVICES}/{name}")]
    if overlooked:
        raise OSError(f"udev does not show {', '.join(sorted(overlooked))}")
    functions = {name: read for name in sorted(found) if (read := _read(name))}
    _link_late_ones(functions)
    vfs: dict[str, list[str]] = {}
    for function in functions.values():
        if function["pf"]:
            vfs.setdefault(str(function["pf"]), []).append(str(function["address"]))
    return Snapshot(
        Function(**facts, vfs=tuple(vfs.get(name, ())))  # type: ignore[arg-type]
        for name, facts in functions.items()
    )


class _Tree:
    """This host's sysfs."""

    def read(self, address: str, path: str) -> str:
        return sysfs.text(_below(address, path))

    def names(self, address: str, path: str) -> Iterable[str]:
        return os.listdir(_below(address, path))

    def exists(self, address: str) -> bool:
        return os.path.exists(f"{_DEVICES}/{address}")

    def product(self, vendor: str, device: str) -> str | None:
        return pci_ids.product(vendor, device)


@functools.cache
def _context() -> pyudev.Context:
    """One a process: making it runs ldconfig, and a pass starts no child process."""
    return pyudev.Context()


def _listed() -> set[str]:
    try:
        return set(os.listdir(_DEVICES))
    except FileNotFoundError:
        return set()  # a host without PCI


def _read(address: str) -> dict[str, object] | None:
    """The facts of a function, or None if it vanished meanwhile.

    The files are read without pyudev, which takes several times as long for the same bytes.
    """
    path = f"{_DEVICES}/{address}"
    try:
        properties = dict(
            line.split("=", 1) for line in sysfs.text(f"{path}/uevent").splitlines() if "=" in line
        )
        vendor, product = properties["PCI_ID"].lower().split(":")
        class_code = properties["PCI_CLASS"].lower().zfill(6)
        numa_node = int(sysfs.optional(f"{path}/numa_node") or -1)
    except (OSError, KeyError, ValueError) as exc:
        if os.path.exists(path):
            raise OSError(f"{path} cannot be read: {exc!r}") from exc
        return None
    subsystem_vendor, subsystem_device = properties.get("PCI_SUBSYS_ID", "0:0").lower().split(":")
    pf = sysfs.link(f"{path}/physfn")
    return {
        "address": address,
        "vendor": vendor.zfill(4),
        "device": product.zfill(4),
        "subsystem_vendor": subsystem_vendor.zfill(4),
        "subsystem_device": subsystem_device.zfill(4),
        "class_code": class_code,
        "driver": properties.get("DRIVER"),
        "numa_node": numa_node if numa_node >= 0 else None,
        "pf": pf,
        "sriov_totalvfs": 0 if pf else int(sysfs.optional(f"{path}/sriov_totalvfs") or 0),
        "iommu_group": sysfs.link(f"{path}/iommu_group"),
        "boot_vga": (
            pf is None
            and class_code.startswith("03")
            and sysfs.optional(f"{path}/boot_vga") == "1"
        ),
        "netdevs": tuple(sysfs.names(f"{path}/net")) if class_code.startswith("02") else (),
    }


def _link_late_ones(functions: dict[str, dict[str, object]]) -> None:
    """Tell the physical function of each virtual one whose link the kernel has still to make.

    For a moment a new virtual function looks like a whole card. Its place, which its physical
    function tells beforehand, gives it away.
    """
    pfs = [facts for facts in functions.values() if facts["sriov_totalvfs"]]
    vf_device = functools.cache(lambda pf: sysfs.optional(f"{_DEVICES}/{pf}/sriov_vf_device"))
    for facts in functions.values():
        is_bridge = str(facts["class_code"]).startswith(_BRIDGES)
        if facts["pf"] or facts["sriov_totalvfs"] or is_bridge:
            continue
        for pf in pfs:
            is_kin = facts["vendor"] == pf["vendor"] and facts["device"] == vf_device(pf["address"])
            if is_kin and _is_place_of_vf(facts, pf):
                facts["pf"] = pf["address"]


def _is_place_of_vf(facts: dict[str, object], pf: dict[str, object]) -> bool:
    domain, number = _routing_id(str(facts["address"]))
    pf_domain, pf_number = _routing_id(str(pf["address"]))
    if domain != pf_domain or number <= pf_number:
        return False
    path = f"{_DEVICES}/{pf['address']}"
    offset = int(sysfs.optional(f"{path}/sriov_offset") or 0)
    stride = int(sysfs.optional(f"{path}/sriov_stride") or 0) or 1
    index, rest = divmod(number - pf_number - offset, stride)
    return offset > 0 and rest == 0 and 0 <= index < int(str(pf["sriov_totalvfs"]))


def _routing_id(address: str) -> tuple[str, int]:
    place = split(address)
    device = int(place["device"], 16) << 3 | int(place["function"], 16)
    return place["domain"], int(place["bus"], 16) << 8 | device


def _plain(text: str) -> str:
    """The text without what no database stores: NUL, and what stands for bytes that are no text."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    if "\0" in text:
        text = text.replace("\0", "")
    return text.strip()


def _below(address: str, path: str) -> str:
    return path if path.startswith("/") else f"{_DEVICES}/{address}/{path}"
