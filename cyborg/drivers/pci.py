# SPDX-License-Identifier: Apache-2.0
"""What PCI functions a host has: one walk by pyudev, read into values that never change."""

from __future__ import annotations

import functools
import pathlib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyudev

_DEVICES = pathlib.Path("/sys/bus/pci/devices")


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


#: Every function of a host by its address, in the order of addresses.
Snapshot = Mapping[str, Function]


def split(address: str) -> dict[str, str]:
    """The parts of an address as Nova wants them in an attach handle."""
    domain, bus, rest = address.split(":")
    device, function = rest.split(".")
    return {"domain": domain, "bus": bus, "device": device, "function": function}


def reason_to_keep(function: Function) -> str | None:
    """Why a function must stay with the host whatever the operator lists, or None."""
    if function.class_code.startswith("06"):
        return "it is a bridge"
    if function.boot_vga:
        return "it is the graphics card that the host was booted with"
    if len(split(function.address)["domain"]) > 4:
        return "guests have no PCI domain above ffff"
    return None


def scan() -> Snapshot:
    """Read every PCI function of this host.

    :raises OSError: something could not be read, so what is absent need not be gone
    """
    if not _DEVICES.parent.parent.is_dir():
        raise OSError(f"{_DEVICES.parent.parent} is absent: sysfs is not mounted")
    expected = _listed()
    found = {device.sys_name: device for device in _context().list_devices(subsystem="pci")}
    overlooked = [name for name in expected - found.keys() if (_DEVICES / name).exists()]
    if overlooked:
        raise OSError(f"udev does not show {', '.join(sorted(overlooked))}")
    functions = {name: read for name in sorted(found) if (read := _read(found[name]))}
    vfs: dict[str, list[str]] = {}
    for function in functions.values():
        if function["pf"]:
            vfs.setdefault(str(function["pf"]), []).append(str(function["address"]))
    return types.MappingProxyType(
        {
            name: Function(**facts, vfs=tuple(vfs.get(name, ())))  # type: ignore[arg-type]
            for name, facts in functions.items()
        }
    )


@functools.cache
def _context() -> pyudev.Context:
    """One a process: making it runs ldconfig, and a pass starts no child process."""
    return pyudev.Context()


def _listed() -> set[str]:
    try:
        return {path.name for path in _DEVICES.iterdir()}
    except FileNotFoundError:
        return set()  # a host without PCI


def _read(device: pyudev.Device) -> dict[str, object] | None:
    """The facts of a function, or None if it vanished meanwhile."""
    properties, attributes = device.properties, device.attributes
    path = pathlib.Path(device.sys_path)
    if "PCI_ID" not in properties or "PCI_CLASS" not in properties:
        if path.exists():
            raise OSError(f"{path} cannot be read")
        return None
    vendor, product = properties["PCI_ID"].lower().split(":")
    subsystem_vendor, subsystem_device = properties.get("PCI_SUBSYS_ID", "0:0").lower().split(":")
    class_code = properties["PCI_CLASS"].lower().zfill(6)
    numa_node = int(attributes.get("numa_node", -1))
    return {
        "address": device.sys_name,
        "vendor": vendor.zfill(4),
        "device": product.zfill(4),
        "subsystem_vendor": subsystem_vendor.zfill(4),
        "subsystem_device": subsystem_device.zfill(4),
        "class_code": class_code,
        "driver": properties.get("DRIVER"),
        "numa_node": numa_node if numa_node >= 0 else None,
        "pf": _link(path / "physfn"),
        "sriov_totalvfs": int(attributes.get("sriov_totalvfs", 0)),
        "iommu_group": _link(path / "iommu_group"),
        "boot_vga": attributes.get("boot_vga", b"0").strip() == b"1",
        "netdevs": tuple(_children(path / "net")) if class_code.startswith("02") else (),
    }


def _link(path: pathlib.Path) -> str | None:
    # pyudev shows no links to directories.
    try:
        return path.readlink().name
    except OSError:
        return None


def _children(path: pathlib.Path) -> Iterator[str]:
    if path.is_dir():
        yield from sorted(child.name for child in path.iterdir())
