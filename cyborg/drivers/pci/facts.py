# SPDX-License-Identifier: Apache-2.0
"""Facts of one function that are read when a driver asks: link, errors, mdev types."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cyborg.drivers.pci import sysfs, vpd
from cyborg.drivers.pci.snapshot import Function, Snapshot, once

_MDEV = "mdev_supported_types"
_WIDTH_MAX = 32
#: The offset of the header type in PCI configuration space, and its bit for multi-function cards.
_HEADER_TYPE, _MULTI_FUNCTION = 0x0E, 0x80
#: What the kernel writes of a link: a number with its unit, or that it does not know it.
_LINK_TEXT = re.compile(r"(\d{1,5}(\.\d)?( GT/s.{0,10})?|Unknown.{0,10})?")
_LINK_FILES = (
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "../max_link_speed",
    "../max_link_width",
)
#: The line of an AER counter with the sum of all the others.
_TOTAL = re.compile(r"^TOTAL_ERR_\w+ (\d{1,20})$", re.MULTILINE)
_NVIDIA = "10de"
#: GPUs of which a card has several, below a switch of another vendor: GRID K1, K2 and K10, Tesla
#: K80, M10 and M60, A16, Radeon Pro V340, Flex 140 and SG1.
_SEVERAL = re.compile("10de:(0ff2|11bf|118f|102d|13bd|13f2|25b6)|1002:6864|8086:(56c1|4907)")
#: A2, which has the id of A16.
_ALONE = ("10de", "157e")
#: Of Vega 10; the vendor is that of processors and chipsets.
_OF_VEGA = ("1470", "1471")
_VGPU_TYPE = "nvidia/current_vgpu_type"
#: It is beside the type.
_CREATABLE = "creatable_vgpu_types"
#: The type of a virtual function that has none yet.
NO_VGPU_TYPE = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A PCIe link: what it is now, and the most that the card and the slot above it can do.

    ``slot_known`` says that the slot is among the latter. Without it a narrow or slow link may be
    all that the slot has.
    """

    speed: str
    width: int
    max_speed: str
    max_width: int
    slot_known: bool

    def __str__(self) -> str:
        # An idle card slows its link down, so the present speed would be reported again and again.
        return f"{self.max_speed} x{self.width}"

    @property
    def is_up(self) -> bool:
        """True if the card answers; one that fell off the bus reads as all ones.

        A speed that the kernel has no name for, as of a new generation, says nothing.
        """
        return 0 < self.width <= _WIDTH_MAX

    @property
    def is_narrow(self) -> bool:
        """True if lanes are lost."""
        return self.slot_known and self.width < self.max_width

    @property
    def is_slow(self) -> bool:
        """True if it is slower than it could be, as the links of many idle cards are."""
        now = _gigatransfers(self.speed)
        return self.slot_known and 0 < now < _gigatransfers(self.max_speed)


@dataclass(frozen=True, slots=True, kw_only=True)
class MdevType:
    """A type of mediated device that a function offers.

    ``available`` more can be created now; ``created`` are the uuids of those that exist.
    """

    id: str
    name: str
    description: str
    available: int
    created: tuple[str, ...]

    @property
    def total(self) -> int:
        """The most that there can be, with those of other types left as they are."""
        return self.available + len(self.created)


@once
def link(function: Function, functions: Snapshot) -> Link | None:
    """The link of a physical function, or None if it has none or the kernel shows none.

    A function that is built into the processor has no link, and the files hold no speed. A card
    with a switch of its own has the link of that to its slot, if the function answers.
    """
    edge = ports_of_card(function, functions)[0]
    found = _link_at(function.address, functions)
    if edge != function.address and (found is None or found.is_up):
        found = _link_at(edge, functions) or found
    # A card without power reads like one that fell off the bus, but it answers when it is needed.
    if found is None or found.is_up:
        return found
    states = [functions.text(each, "power_state") for each in (function.address, edge)]
    return None if "D3cold" in states else found


def _link_at(address: str, functions: Snapshot) -> Link | None:
    speed = functions.text(address, "current_link_speed")
    width = functions.number(address, "current_link_width")
    max_speed = functions.text(address, "max_link_speed")
    max_width = functions.number(address, "max_link_width")
    if speed is None or width is None or max_speed is None or max_width is None:
        return None
    if not _gigatransfers(max_speed):
        return None
    # A wide card in a narrow slot has all the lanes it can have.
    slot_speed = functions.text(address, "../max_link_speed")
    slot_width = functions.number(address, "../max_link_width")
    slot_known = bool(slot_width) and _gigatransfers(slot_speed or "") > 0
    if slot_speed is not None and slot_width is not None and slot_known:
        max_speed = min(max_speed, slot_speed, key=_gigatransfers)
        max_width = min(max_width, slot_width)
    return Link(
        speed=_plain(speed),
        width=width,
        max_speed=_plain(max_speed),
        max_width=max_width,
        slot_known=slot_known,
    )


def required_link(function: Function, functions: Snapshot) -> Link | None:
    """As :func:`link`, to tell whether it is sound.

    :raises OSError, ValueError: one of its files cannot be read
    """
    for address in {function.address, ports_of_card(function, functions)[0]}:
        for name in _LINK_FILES:
            text = functions.if_there(address, name)
            if text is not None and not _LINK_TEXT.fullmatch(text):
                raise ValueError(f"{name} of {address} holds nothing of a link: {text[:40]!r}")
    return link(function, functions)


@once
def _ports(
    function: Function, functions: Snapshot
) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    """The ports between the root port and a function: of the board, of a switch that several GPUs
    of the card share, and of the function's own switch, whose ports are of its vendor.
    """
    _root, *above = functions.bridges(function) or ("",)
    if not above:
        return (), (), ()
    ports = [functions[each] for each in above[-2:] if each in functions]
    is_vega = function.vendor == "1002" and tuple(each.device for each in ports) == _OF_VEGA
    is_own = is_vega or [each.vendor for each in ports] == [function.vendor] * 2
    own = len(above) - 2 if is_own else len(above)
    several = _SEVERAL.fullmatch(f"{function.vendor}:{function.device}")
    if (function.subsystem_vendor, function.subsystem_device) == _ALONE:
        several = None
    shared = own - 2 if several and own > 1 else own
    return above[:shared], above[shared:own], above[own:]


def ports_of_card(function: Function, functions: Snapshot) -> Sequence[str]:
    """The ports of the switches on a function's card, the one in the slot first, and itself."""
    _board, shared, own = _ports(function, functions)
    return (*shared, *own, function.address)


def switch(function: Function, functions: Snapshot) -> str | None:
    """The PCIe switch that the function is behind, by the address of its upstream port, or None.

    Below the root port a switch shows its upstream port and a downstream port. If there are several
    switches, this is the one next to the processor. A switch that has only this GPU is none.
    """
    board, shared, _own = _ports(function, functions)
    ports = (*board, *shared)
    return ports[0] if len(ports) > 1 else None


def errors(ports: Iterable[str], functions: Snapshot, kind: str) -> int:
    """The number of errors of a kind (``fatal``, ``nonfatal``) that AER has counted at these ports.

    :raises OSError, ValueError: that cannot be read
    """
    total = 0
    for address in ports:
        text = functions.if_there(address, f"aer_dev_{kind}")
        found = _TOTAL.search(text or "")
        if text and found is None:
            raise ValueError(f"aer_dev_{kind} of {address} holds no sum: {text[:40]!r}")
        total += int(found.group(1)) if found else 0
    return total


@once
def mdev_types(function: Function, functions: Snapshot) -> tuple[MdevType, ...]:
    """The types of mediated devices that a function offers.

    :raises OSError, ValueError: how many there are cannot be read
    """
    found = []
    for kind in functions.names(function.address, _MDEV):
        path = f"{_MDEV}/{kind}"
        available = functions.required_number(function.address, f"{path}/available_instances")
        found.append(
            MdevType(
                id=kind,
                name=functions.text(function.address, f"{path}/name") or kind,
                description=functions.text(function.address, f"{path}/description") or "",
                available=available,
                created=tuple(
                    name
                    for name in functions.names(function.address, f"{path}/devices")
                    if not name.startswith(".")
                ),
            )
        )
    return tuple(found)


def division(
    function: Function, functions: Snapshot, *, of_card: bool = False
) -> str | None:
    """Why a function counts as divided: its parts may be with guests. None if it is whole.

    A virtual function with a vGPU type may be given out as it is, but it does count as divided if
    its whole card is to be given out (``of_card``).

    :raises OSError: it cannot be read
    """
    if function.driver is None or function.has_guest_driver:
        return None  # the parts are made by the vendor's driver
    address = function.address
    for kind in functions.names(address, _MDEV):
        if any(name[:1] != "." for name in functions.names(address, f"{_MDEV}/{kind}/devices")):
            return f"it has mediated devices of type {kind}"
    number = vgpu_type(function, functions) if of_card else None
    return None if number in {None, NO_VGPU_TYPE} else f"it has vGPU type {number}"


def vgpu_type(function: Function, functions: Snapshot) -> str | None:
    """The number of the vGPU type that a virtual function of an NVIDIA card has.

    None for any other function.

    :raises OSError, ValueError: it cannot be read
    """
    if function.vendor != _NVIDIA or function.pf is None:
        return None
    directory, _slash, name = _VGPU_TYPE.rpartition("/")
    if not {name, _CREATABLE} & set(functions.names(function.address, directory)):
        return None
    return str(functions.required_number(function.address, _VGPU_TYPE))


def has_others(function: Function) -> bool:
    """True if a card's first function says that the card has more, even if the bus shows none."""
    path = f"{sysfs.DEVICES}/{function.address}/config"
    header = sysfs.beginning(path, _HEADER_TYPE + 1)
    return len(header) > _HEADER_TYPE and bool(header[_HEADER_TYPE] & _MULTI_FUNCTION)


def reset_methods(function: Function, functions: Snapshot) -> tuple[str, ...]:
    """The ways in which the kernel can reset the function, in the order it tries them.

    :raises OSError: they cannot be read
    """
    return tuple((functions.if_there(function.address, "reset_method") or "").split())


def driver_version(function: Function, functions: Snapshot) -> str | None:
    """The version of the host's driver, or None if its module has none."""
    return functions.text(function.address, "driver/module/version")


def attributes(function: Function, functions: Snapshot) -> dict[str, str | int]:
    """The attributes of a deployable with this function, without those that are not known.

    A guest has its own driver for a whole card. For a virtual function the host's driver of the
    card matters.
    """
    physical = functions.get(function.pf or function.address, function)
    present = link(physical, functions)
    # The card's own switch may have its serial number.
    places = (physical.address, *_ports(physical, functions)[2][:1])
    serials = (functions.text(each, "serial_number") for each in places)
    facts: dict[str, str | int | None] = {
        "pci_address": function.address,
        "numa_node": function.numa_node,
        "pcie_switch": switch(physical, functions),
        "product": vpd.product_name(physical) or functions.product(physical),
        "serial": next(filter(None, serials), None),
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
    """A link speed as older kernels write it: newer ones add ``PCIe``, as in ``16.0 GT/s PCIe``."""
    return speed.removesuffix(" PCIe")
