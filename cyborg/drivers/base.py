# SPDX-License-Identifier: Apache-2.0
"""What a driver reports: frozen dataclasses, checked when made, and the abilities it may have.

A driver needs :class:`Driver` only. The other protocols are optional abilities, one method or two
each, and are found by ``isinstance``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cyborg import program_modes
from cyborg.drivers import checks

if TYPE_CHECKING:
    import pathlib

    from cyborg.drivers import pci

#: Device types of the REST API. A new type is a word here, not a migration.
DEVICE_TYPES = frozenset({"GPU", "FPGA", "AICHIP", "QAT", "NIC", "SSD", "MDEV", "PCI", "NVME"})
#: What a handle is. Nova attaches PCI only; NVMF is where an initiator connects to.
ATTACH_TYPES = frozenset({"PCI", "MDEV", "NVMF", "TEST_PCI"})
DYNAMIC = program_modes.DYNAMIC
SINGLE_PROGRAM = program_modes.SINGLE_PROGRAM

#: The attribute key of a deployable's resource class, and how the keys of its traits begin.
RESOURCE_CLASS_KEY = "rc"
TRAIT_PREFIX = "trait"

FACTS = checks.FACTS

_canonical = json.JSONEncoder(sort_keys=True, separators=(", ", ": "))
_CLASS_OR_TRAIT = re.compile(r"[A-Z0-9_]{1,255}")


def canonical_json(value: Any) -> str:
    """JSON text that is equal whenever the value is equal."""
    return _canonical.encode(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPath:
    """How the host reaches a device to manage it: type and facts, such as a PCI address."""

    cpid_type: str
    cpid_info: Mapping[str, str]

    def __post_init__(self) -> None:
        checks.text("cpid_type", self.cpid_type, 30)
        checks.text("cpid_info", canonical_json(dict(self.cpid_info)), checks.NAME_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachHandle:
    """What a guest is given: for PCI the keys domain, bus, device and function in hex."""

    attach_type: str
    attach_info: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.attach_type not in ATTACH_TYPES:
            raise ValueError(f"attach_type {self.attach_type!r} is none of {sorted(ATTACH_TYPES)}")
        checks.text("attach_info", canonical_json(dict(self.attach_info)), checks.NAME_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldHandle(AttachHandle):
    """An attach handle that an ARQ holds, as a host step gets it.

    ``uuid`` is the handle's own, the same for every step of it; ``control_path`` is its device's.
    """

    uuid: str
    control_path: ControlPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployable:
    """A part of a device from which handles are given out: one resource provider.

    ``name`` names the provider and must be unique in the cloud, so it begins with the host's name.
    ``prepares`` and ``cleans`` say that the driver's :class:`Preparable` and :class:`Cleanable`
    abilities must run on each handle before and after use. ``prepared`` holds the uuids of the
    handles that are ready on the host now, where the driver can tell: one that a guest has and
    that is not among them, as after a reboot of the host, is prepared again. ``clean_erases`` says
    that cleaning erases what a guest wrote: then it is due even for a handle that is reported no
    more. ``parent`` is the name of the deployable of the same device below which this one's
    provider is: of the card whose region it is.

    ``program_mode``, :data:`DYNAMIC` or :data:`SINGLE_PROGRAM`, says that the driver's
    :class:`Programmable` ability can load a function. ``function`` is the id of the function that
    the hardware itself shows as loaded: empty where it shows none, None where it cannot tell.
    ``function_vendor`` is the vendor's part of the trait that is made of it, such as ``INTEL``.
    """

    name: str
    resource_class: str
    num_accelerators: int
    attach_handles: tuple[AttachHandle, ...]
    traits: tuple[str, ...] = ()
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    prepares: bool = False
    cleans: bool = False
    clean_erases: bool = False
    prepared: tuple[str, ...] | None = None
    parent: str | None = None
    program_mode: str | None = None
    function: str | None = None
    function_vendor: str = ""

    def __post_init__(self) -> None:
        checks.text("name", self.name, checks.NAME_MAX)
        checks.program(self.program_mode, self.function, self.function_vendor)
        for symbol in (self.resource_class, *self.traits):
            if not _CLASS_OR_TRAIT.fullmatch(symbol):
                raise ValueError(
                    f"{symbol!r} is no legal resource class or trait: use A-Z, 0-9 and _"
                )
        if len(set(self.traits)) != len(self.traits):
            raise ValueError(f"deployable {self.name!r} has a trait twice")
        if not 0 <= self.num_accelerators <= checks.COUNT_MAX:
            raise ValueError(
                f"deployable {self.name!r} has {self.num_accelerators} as num_accelerators"
            )
        for key, value in self.attributes.items():
            checks.text("attribute key", key, checks.NAME_MAX)
            checks.fact(key, value)
            if key == RESOURCE_CLASS_KEY or key.startswith(TRAIT_PREFIX):
                raise ValueError(f"attribute key {key!r} is reserved; use resource_class, traits")
        infos = {tuple(sorted(handle.attach_info.items())) for handle in self.attach_handles}
        if len(infos) != len(self.attach_handles):
            raise ValueError(f"deployable {self.name!r} has an attach handle twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A physical card or function, identified on its host by its control path.

    ``unhealthy`` says in a sentence why nobody should be given the device; None where all is well
    or nothing is known. ``health_unknown`` says that it stays as ill or well as it was.
    """

    type: str
    vendor: str
    model: str
    control_path: ControlPath
    deployables: tuple[Deployable, ...]
    std_board_info: str | None = None
    vendor_board_info: str | None = None
    unhealthy: str | None = None
    health_unknown: bool = False

    def __post_init__(self) -> None:
        if self.type not in DEVICE_TYPES:
            raise ValueError(f"device type {self.type!r} is none of {sorted(DEVICE_TYPES)}")
        checks.text("vendor", self.vendor, checks.NAME_MAX)
        checks.text("model", self.model, checks.NAME_MAX)
        for name in ("std_board_info", "vendor_board_info", "unhealthy"):
            if getattr(self, name) is not None:
                checks.storable(name, getattr(self, name))
        names = [deployable.name for deployable in self.deployables]
        if len(set(names)) != len(names):
            raise ValueError("a device has two deployables of one name")
        _check_parents({deployable.name: deployable.parent for deployable in self.deployables})

    def to_wire(self) -> dict[str, Any]:
        """The device as plain data for a message."""
        return asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Device:
        """The device of a message. Unknown keys are ignored: the sender may be newer.

        :raises KeyError, TypeError, ValueError: the data is no device
        """
        deployables = tuple(
            Deployable(
                name=item["name"],
                resource_class=item["resource_class"],
                num_accelerators=item["num_accelerators"],
                attach_handles=tuple(
                    AttachHandle(
                        attach_type=handle["attach_type"], attach_info=handle["attach_info"]
                    )
                    for handle in item["attach_handles"]
                ),
                traits=tuple(item.get("traits", ())),
                attributes=item.get("attributes", {}),
                prepares=item.get("prepares", False),
                cleans=item.get("cleans", False),
                clean_erases=item.get("clean_erases", False),
                prepared=None if item.get("prepared") is None else tuple(item["prepared"]),
                parent=item.get("parent"),
                program_mode=item.get("program_mode"),
                function=item.get("function"),
                function_vendor=item.get("function_vendor", ""),
            )
            for item in data["deployables"]
        )
        path = data["control_path"]
        return cls(
            type=data["type"],
            vendor=data["vendor"],
            model=data["model"],
            control_path=ControlPath(cpid_type=path["cpid_type"], cpid_info=path["cpid_info"]),
            deployables=deployables,
            std_board_info=data.get("std_board_info"),
            vendor_board_info=data.get("vendor_board_info"),
            unhealthy=data.get("unhealthy"),
            health_unknown=data.get("health_unknown", False),
        )


def _check_parents(parents: Mapping[str, str | None]) -> None:
    for name in parents:
        above, seen = parents[name], {name}
        while above is not None:
            if above not in parents:
                raise ValueError(f"deployable {name!r} is below {above!r}, which its device lacks")
            if above in seen:
                raise ValueError(f"deployable {name!r} is below itself")
            seen.add(above)
            above = parents[above]


class Host(Protocol):
    """What one discovery pass tells its drivers of the host."""

    @property
    def name(self) -> str:
        """``[DEFAULT] host``, with which the names of deployables begin."""

    @property
    def pci(self) -> pci.Snapshot:
        """The PCI functions: one walk a pass, made when first asked for.

        :raises OSError: the walk is not complete, so nothing may be concluded from it
        """

    @property
    def foreign(self) -> frozenset[str]:
        """The PCI functions that another driver claims more exactly. They are not to be reported.

        :raises OSError: as for :attr:`pci`
        """


@runtime_checkable
class Driver(Protocol):
    """Finds the devices of one kind on one host.

    The class is an entry point of the group ``cyborg.accelerator.driver`` and is made with one
    argument, the configuration, without any I/O.
    """

    def discover(self, host: Host) -> Iterable[Device]:
        """Every device of this kind on the host.

        Called once a pass, never twice at a time. An exception means "cannot tell", never
        "no devices": the devices known so far are kept.
        """


@runtime_checkable
class Claiming(Protocol):
    """The driver says beforehand which PCI functions it means, so that no two report one."""

    def claims(self, functions: pci.Snapshot) -> Mapping[str, int]:
        """Addresses of functions it would report, each with how exactly it is meant.

        The driver with the largest number gets the function; it counts digits of the ids and
        the address that the driver, or the operator's list, asks for. No I/O. After an exception
        what :meth:`Driver.discover` finds in that pass does not count.
        """


@runtime_checkable
class HealthReporting(Protocol):
    """The driver can tell whether a device that it found should be given to anybody."""

    def health(self, device: Device, host: Host) -> str | None:
        """A sentence that says what is wrong, or None where nothing is or nothing is known.

        Asked in the thread of :meth:`Driver.discover`, after it. A sentence must not change while
        nothing else does: each change is reported. An exception means "cannot tell": the device
        stays as it was.
        """


@runtime_checkable
class Complaining(Protocol):
    """The driver can tell what it left out that an operator should see to."""

    def complaints(self) -> Iterable[str]:
        """Sentences about the last :meth:`Driver.discover`, the same while nothing else changes.

        They are reported as the driver's error, beside what it found.
        """


@runtime_checkable
class Preparable(Protocol):
    """The handle needs a step on the host before a guest may use it.

    May be run twice, and while a guest has the handle: what is ready must stay as it is.
    """

    def prepare(self, handle: HeldHandle) -> None:
        """Make the handle ready; return when it is, raise when it cannot be."""


@runtime_checkable
class Cleanable(Protocol):
    """The handle needs a step on the host after use. May be run twice."""

    def clean(self, handle: HeldHandle) -> None:
        """Remove every trace of the last use; return when done, raise when it cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTarget:
    """The deployable that is to be programmed, and its device's control path.

    ``function`` is the id of the function that the bitstream should have, where that is known. A
    driver that can tell refuses any other before it writes.
    """

    deployable: str
    control_path: ControlPath
    attach_handles: tuple[AttachHandle, ...]
    function: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Programmed:
    """What came of programming.

    ``function`` is what the hardware shows as loaded now, as in :class:`Deployable`;
    ``verified_by`` says in a few words how the driver knows that the bitstream is loaded.
    """

    function: str | None
    verified_by: str

    def __post_init__(self) -> None:
        checks.text("verified_by", self.verified_by, checks.NAME_MAX)
        if self.function is not None:
            checks.function_id(self.function)


class NothingWritten(Exception):
    """A driver refused a bitstream before it touched the hardware: what ran before still runs."""


class BeingWritten(Exception):
    """Something that was started before still writes the device, which was left alone."""


@runtime_checkable
class Programmable(Protocol):
    """Deployables with a ``program_mode`` can be given another function.

    May be run twice, but never for two deployables of one device at once. No guest has a handle of
    the deployable, unless the hardware has lost what guests use: then the same is written again
    under them, and what they have is to stay as it is, such as virtual functions.
    """

    def program(self, target: ProgramTarget, bitstream: pathlib.Path) -> Programmed:
        """Load the bitstream; return when it is verified to be there.

        The file is complete and its hash is verified. Nobody else changes it meanwhile.

        :raises NothingWritten: it was refused and what ran before still runs; after any other
            exception but the next the deployable counts as unprogrammed
        :raises BeingWritten: it is to be asked for again, since what is written is not known yet
        """
