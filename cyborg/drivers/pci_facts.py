# SPDX-License-Identifier: Apache-2.0
"""Facts of one function beyond the walk, read when a driver asks: link, errors, mdev types."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from cyborg.drivers import pci, sysfs

_MDEV = "mdev_supported_types"
_WIDTH_MAX = 32
#: Where a function's header tells its type, and the bit which says that there are others.
_HEADER_TYPE, _SEVERAL = 0x0E, 0x80
#: The line of an AER counter that sums up all the others.
_TOTAL = re.compile(r"^TOTAL_ERR_\w+ (\d+)$", re.MULTILINE)
_NVIDIA = "10de"
_VGPU_TYPE = "nvidia/current_vgpu_type"
#: What a virtual function has that was given no type.
NO_VGPU_TYPE = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A PCIe link: what it is now, and the most that the card and the slot above it can do."""

    speed: str
    width: int
    max_speed: str
    max_width: int

    def __str__(self) -> str:
        # A card that rests runs slower, which is nothing to report again and again.
        return f"{self.max_speed} x{self.width}"

    @property
    def is_up(self) -> bool:
        """Whether the card answers; one that fell off the bus reads as all ones."""
        return 0 < self.width <= _WIDTH_MAX and _gigatransfers(self.speed) > 0

    @property
    def is_narrow(self) -> bool:
        """Whether lanes are lost."""
        return self.width < self.max_width

    @property
    def is_slow(self) -> bool:
        """Whether it is slower than it could be, as many cards are while they rest."""
        return _gigatransfers(self.speed) < _gigatransfers(self.max_speed)


@dataclass(frozen=True, slots=True, kw_only=True)
class MdevType:
    """A kind of mediated device that a function can be split into.

    ``available`` more could be created now; ``created`` are the uuids of those that exist.
    """

    id: str
    name: str
    description: str
    available: int
    created: tuple[str, ...]

    @property
    def total(self) -> int:
        """How many there can be while the function is split as it is now."""
        return self.available + len(self.created)


@pci.once
def link(function: pci.Function, functions: pci.Snapshot) -> Link | None:
    """The link of a physical function, or None where the kernel shows none."""
    address = function.address
    speed = functions.text(address, "current_link_speed")
    width = functions.number(address, "current_link_width")
    max_speed = functions.text(address, "max_link_speed")
    max_width = functions.number(address, "max_link_width")
    if speed is None or width is None or max_speed is None or max_width is None:
        return None
    # A wide card in a narrow slot is as wide as it can be.
    slot_speed = functions.text(address, "../max_link_speed")
    slot_width = functions.number(address, "../max_link_width")
    if slot_speed is not None and slot_width is not None:
        max_speed = min(max_speed, slot_speed, key=_gigatransfers)
        max_width = min(max_width, slot_width)
    found = Link(
        speed=_plain(speed), width=width, max_speed=_plain(max_speed), max_width=max_width
    )
    # A card without power answers no more than one that fell off the bus, but will when needed.
    asleep = not found.is_up and functions.text(address, "power_state") == "D3cold"
    return None if asleep else found


def errors(function: pci.Function, functions: pci.Snapshot, kind: str) -> int:
    """How many errors of a kind (``fatal``, ``nonfatal``, ``correctable``) AER has counted."""
    text = functions.text(function.address, f"aer_dev_{kind}") or ""
    found = _TOTAL.search(text)
    return int(found.group(1)) if found else 0


@pci.once
def mdev_types(function: pci.Function, functions: pci.Snapshot) -> tuple[MdevType, ...]:
    """The kinds of mediated devices that a function offers.

    :raises OSError: how many there are cannot be told
    """
    found = []
    for kind in functions.names(function.address, _MDEV):
        path = f"{_MDEV}/{kind}"
        available = functions.required(function.address, f"{path}/available_instances")
        found.append(
            MdevType(
                id=kind,
                name=functions.text(function.address, f"{path}/name") or kind,
                description=functions.text(function.address, f"{path}/description") or "",
                available=int(available),
                created=tuple(
                    name
                    for name in functions.names(function.address, f"{path}/devices")
                    if not name.startswith(".")
                ),
            )
        )
    return tuple(found)


def division(
    function: pci.Function, functions: pci.Snapshot, *, of_card: bool = False
) -> str | None:
    """What somebody has made of a function, which guests may have, or None.

    A virtual function with a vGPU type may be given out as it is, but not ``of_card``: with its
    card.

    :raises OSError: it cannot be told
    """
    if function.driver is None or "vfio" in function.driver:
        return None  # the driver makes them
    address = function.address
    for kind in functions.names(address, _MDEV):
        if any(name[:1] != "." for name in functions.names(address, f"{_MDEV}/{kind}/devices")):
            return f"it has mediated devices of type {kind}"
    number = vgpu_type(function, functions) if of_card else None
    return None if number in {None, NO_VGPU_TYPE} else f"it has vGPU type {number}"


def vgpu_type(function: pci.Function, functions: pci.Snapshot) -> str | None:
    """The number of the vGPU type that a virtual function of an NVIDIA card has been given.

    None where it takes none.

    :raises OSError: it cannot be told
    """
    if function.vendor != _NVIDIA or function.pf is None:
        return None
    directory, _slash, name = _VGPU_TYPE.rpartition("/")
    if name not in functions.names(function.address, directory):
        return None
    return functions.required(function.address, _VGPU_TYPE)


def has_others(function: pci.Function) -> bool:
    """Whether a card's first function says that the card has others, on the bus or not."""
    path = f"/sys/bus/pci/devices/{function.address}/config"
    header = sysfs.beginning(path, _HEADER_TYPE + 1)
    return len(header) > _HEADER_TYPE and bool(header[_HEADER_TYPE] & _SEVERAL)


def reset_methods(function: pci.Function, functions: pci.Snapshot) -> tuple[str, ...]:
    """The ways in which the kernel can reset the function, the first it would try first."""
    return tuple((functions.text(function.address, "reset_method") or "").split())


def driver_version(function: pci.Function, functions: pci.Snapshot) -> str | None:
    """The version of the host's driver, where its module tells one."""
    return functions.text(function.address, "driver/module/version")


def attributes(function: pci.Function, functions: pci.Snapshot) -> dict[str, str | int]:
    """What a deployable that gives the function out has as attributes, as far as it is known.

    A guest brings its own driver for a whole card; the host's matters behind virtual functions.
    """
    physical = functions.get(function.pf or function.address, function)
    present = link(physical, functions)
    facts: dict[str, str | int | None] = {
        "pci_address": function.address,
        "numa_node": function.numa_node,
        "product": functions.product(physical),
        "serial": functions.text(physical.address, "serial_number"),
        "link": str(present) if present is not None and present.is_up else None,
    }
    if function.pf is None:
        facts["reset_methods"] = " ".join(reset_methods(function, functions))
    else:
        facts["driver_version"] = driver_version(physical, functions)
    return {key: value for key, value in facts.items() if value is not None and value != ""}


@functools.lru_cache(maxsize=64)
def _gigatransfers(speed: str) -> float:
    found = re.match(r"\d+(\.\d+)?", speed)
    return float(found.group()) if found else 0.0


def _plain(speed: str) -> str:
    """``16.0 GT/s PCIe`` of newer kernels in the words of older ones."""
    return speed.removesuffix(" PCIe")
