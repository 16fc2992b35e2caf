# SPDX-License-Identifier: Apache-2.0
"""The interface of drivers: the frozen, checked dataclasses they report, and their protocols.

A driver must implement :class:`Driver` only. The other protocols are optional abilities with one
method each, found by ``isinstance``.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cyborg.common import handle_words, program_modes
from cyborg.drivers import permit_clock, trait_names, value_checks

if TYPE_CHECKING:
    import pathlib

    from cyborg.drivers import kept_cdi
    from cyborg.drivers.pci.snapshot import Function, Snapshot

#: The version of this interface. A driver says for which it was written; no other is loaded.
DRIVER_API = 1

#: Device types of the REST API. A new type is added here and needs no migration.
DEVICE_TYPES = frozenset({"GPU", "FPGA", "AICHIP", "QAT", "NIC", "SSD", "MDEV", "PCI", "NVME"})
#: The types of devices that keep what is written to them; nothing but erasing makes them clean.
DISKS = frozenset({"NVME", "SSD"})
NODES = handle_words.NODES
SHARE_CLASS, SHARE_KEY = handle_words.SHARE_CLASS, handle_words.SHARE_KEY
#: Whether one project at a time has shares of a card, or several may.
OF_ONE_PROJECT, OF_ALL_PROJECTS = "one-project", "all-projects"
#: The type of the control path of what is no PCI function; its ``path`` is a folder of sysfs.
SYSFS = "SYSFS"
#: Types of attach handles. Nova attaches PCI only; an initiator connects to an NVMF handle.
ATTACH_TYPES = frozenset({"PCI", "MDEV", "NVMF", NODES, "TEST_PCI"})
DYNAMIC = program_modes.DYNAMIC
SINGLE_PROGRAM = program_modes.SINGLE_PROGRAM
LAYOUT = program_modes.LAYOUT

#: The attribute key of a deployable's resource class, and how the keys of its traits begin.
RESOURCE_CLASS_KEY = "rc"
TRAIT_PREFIX = "trait"
#: The attribute key of how many accelerators only go together, since they are those of a board.
BOARD_FUNCTIONS_KEY = "board_functions"
#: How the keys of the layouts that a deployable can have begin; each has its accelerators as value.
LAYOUT_PREFIX = "layout_"

#: The attribute key of the kind of CDI devices that the agent makes of a deployable's handles.
CDI_KIND_KEY = "cdi_kind"

FACTS = value_checks.FACTS

#: The moments at which a container runtime starts hooks.
HOOKS = frozenset(
    {
        *("prestart", "createRuntime", "createContainer"),
        *("startContainer", "poststart", "poststop"),
    }
)

_canonical = json.JSONEncoder(sort_keys=True, separators=(", ", ": "))
_CLASS_OR_TRAIT = re.compile(r"[A-Z0-9_]{1,255}")


def canonical_json(value: Any) -> str:
    """JSON text that is the same for equal values."""
    return _canonical.encode(value)


def place(info: Mapping[str, str]) -> str:
    """A PCI address and all further values, or just all values: the same for equal infos."""
    if not info.keys() >= {"domain", "bus", "device", "function"}:
        return " ".join(info[key] for key in sorted(info))
    address = "{domain}:{bus}:{device}.{function}".format_map(info)
    rest = sorted(info.keys() - {"domain", "bus", "device", "function"})
    return " ".join([address, *(info[key] for key in rest)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPath:
    """The way in which the host reaches a device to manage it, such as its PCI address."""

    cpid_type: str
    cpid_info: Mapping[str, str]

    def __post_init__(self) -> None:
        value_checks.text("cpid_type", self.cpid_type, 30)
        value_checks.texts("cpid_info", self.cpid_info)

    def __str__(self) -> str:
        """Type and facts, the same text for equal paths."""
        return f"{self.cpid_type} {canonical_json(dict(self.cpid_info))}"

    @property
    def place(self) -> str:
        """Type and values for people to read."""
        return f"{self.cpid_type} {place(self.cpid_info)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachHandle:
    """A handle that a consumer gets.

    For PCI the keys are domain, bus, device and function, in hex. For :data:`NODES` they are what
    stays the same over reboots, such as the uuid of a GPU, or a ``path`` below ``/sys/devices``.
    """

    attach_type: str
    attach_info: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.attach_type not in ATTACH_TYPES:
            raise ValueError(
                f"attach_type {self.attach_type!r} is not one of {sorted(ATTACH_TYPES)}"
            )
        value_checks.texts("attach_info", self.attach_info)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldHandle(AttachHandle):
    """An attach handle that an ARQ holds, as a host step gets it.

    ``uuid`` is the handle's uuid, the same for all its steps; ``control_path`` is its device's.
    ``consumer_nqn`` is under which name the host of the consumer connects to what is reached over
    a network; None if it is this host. ``arq`` is the uuid of the ARQ. ``in_use`` says that the ARQ
    was given the handle before, so that its consumer may be using it now. ``card_in_use`` says that
    other shares of the card have holders, if it is a share.
    """

    uuid: str
    control_path: ControlPath
    consumer_nqn: str | None = None
    arq: str
    in_use: bool = False
    card_in_use: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployable:
    """A part of a device with attach handles: one resource provider.

    ``name`` is the provider's and must be unique in the cloud, so it begins with the host's name.
    ``prepares`` and ``cleans`` say that the driver's :class:`Preparable` and :class:`Cleanable`
    abilities must run on each handle before and after use. ``prepared`` are the uuids of the
    handles that are ready on the host now, or None if the driver cannot know. A guest's handle that
    is not among them, as after a reboot of the host, is prepared again after each report.
    ``clean_erases`` says that cleaning erases a guest's data: then even a handle that is not
    reported any more must be cleaned. The agent sets it too where ``[cleaning]`` requires that a
    handle is clean. ``parent`` is the name of the deployable of the same device whose provider is
    above this one's, such as the card of a region. ``traits`` get those of the facts among
    ``attributes``.

    ``program_mode``, :data:`DYNAMIC` or :data:`SINGLE_PROGRAM`, says that the driver's
    :class:`Programmable` ability can load a function. ``function`` is the id of the function that
    the hardware itself shows as loaded: empty if it shows none, None if it cannot show it.
    ``function_vendor`` is the vendor's part of the function's trait, such as ``INTEL``.

    With :data:`LAYOUT` it is the driver's :class:`Reconfigurable` ability, and ``function`` is the
    name of the layout. Each layout that the deployable can have is an attribute: its key is
    :data:`LAYOUT_PREFIX` and the name, its value how many accelerators there are then. The handles
    of a layout may be those of deployables below it, which count as its parts; then that is 0.

    ``blank_image`` is the UUID or the name of the image that is written between two guests; None
    if nothing is. The agent sets it, as ``[cleaning]`` says.

    ``shared`` says whose the handles may be at a time if each is a share of the same hardware:
    :data:`OF_ONE_PROJECT` or :data:`OF_ALL_PROJECTS`. None says that they are no shares.
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
    blank_image: str | None = None
    shared: str | None = None

    def __post_init__(self) -> None:
        value_checks.text("name", self.name, value_checks.NAME_MAX)
        value_checks.program(self.program_mode, self.function, self.function_vendor)
        if self.blank_image is not None:
            value_checks.text("blank_image", self.blank_image, value_checks.NAME_MAX)
        if self.shared not in {None, OF_ONE_PROJECT, OF_ALL_PROJECTS}:
            raise ValueError(f"shared {self.shared!r} does not say of how many projects")
        for symbol in (self.resource_class, *self.traits):
            if not _CLASS_OR_TRAIT.fullmatch(symbol):
                raise ValueError(
                    f"{symbol!r} is no legal resource class or trait: use A-Z, 0-9 and _"
                )
        if len(set(self.traits)) != len(self.traits):
            raise ValueError(f"deployable {self.name!r} has a trait twice")
        value_checks.number("num_accelerators", self.num_accelerators, value_checks.COUNT_MAX)
        for name in ("prepares", "cleans", "clean_erases"):
            value_checks.flag(name, getattr(self, name))
        _check_attributes(self.attributes)
        traits = dict.fromkeys((*self.traits, *trait_names.of_facts(self.attributes)))
        object.__setattr__(self, "traits", tuple(traits))
        infos = {tuple(sorted(handle.attach_info.items())) for handle in self.attach_handles}
        if len(infos) != len(self.attach_handles):
            raise ValueError(f"deployable {self.name!r} has an attach handle twice")


def _check_attributes(attributes: object) -> None:
    if not isinstance(attributes, Mapping):
        raise TypeError(f"attributes must be a dictionary, not {attributes!r}")
    for key, value in attributes.items():
        value_checks.text("attribute key", key, value_checks.NAME_MAX)
        value_checks.fact(key, value)
        if key == RESOURCE_CLASS_KEY or key.startswith(TRAIT_PREFIX):
            raise ValueError(f"attribute key {key!r} is reserved; use resource_class, traits")
        if key.startswith(LAYOUT_PREFIX):
            value_checks.layout(key.removeprefix(LAYOUT_PREFIX), value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A physical card or function, identified on its host by its control path.

    ``unhealthy`` is a sentence that says why the device must not be given out; None if it is
    healthy or nothing is known. ``health_unknown`` says that its health stays as it was.
    ``being_written`` says that what it shows may be in the middle of a write, or from before it: if
    the device is new, it is not offered yet.
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
    being_written: bool = False

    def __post_init__(self) -> None:
        if self.type not in DEVICE_TYPES:
            raise ValueError(f"device type {self.type!r} is not one of {sorted(DEVICE_TYPES)}")
        value_checks.text("vendor", self.vendor, value_checks.NAME_MAX)
        value_checks.text("model", self.model, value_checks.NAME_MAX)
        for name in ("std_board_info", "vendor_board_info", "unhealthy"):
            if getattr(self, name) is not None:
                value_checks.storable(name, getattr(self, name))
        for name in ("health_unknown", "being_written"):
            value_checks.flag(name, getattr(self, name))
        names = [deployable.name for deployable in self.deployables]
        if len(set(names)) != len(names):
            raise ValueError("a device has two deployables of one name")
        _check_parents({deployable.name: deployable.parent for deployable in self.deployables})

    @property
    def handles(self) -> Iterator[AttachHandle]:
        """The attach handles of all its deployables."""
        return (handle for part in self.deployables for handle in part.attach_handles)

    def to_wire(self) -> dict[str, Any]:
        """The device as plain data for a message."""
        return _values_of(self) | {
            "control_path": _values_of(self.control_path),
            "deployables": tuple(map(_deployable_to_wire, self.deployables)),
        }

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Device:
        """The device of a message. Unknown keys are ignored: the sender may be newer.

        :raises KeyError, TypeError, ValueError: the data is no device
        """
        values = known_values(cls, data)
        values["control_path"] = ControlPath(**known_values(ControlPath, data["control_path"]))
        parts = value_checks.items("deployables", data["deployables"], Mapping)
        values["deployables"] = tuple(map(_deployable_from_wire, parts))
        return cls(**values)


def _deployable_to_wire(part: Deployable) -> dict[str, Any]:
    # Not with asdict(), which copies every text: a host may have thousands of handles.
    handles = tuple(map(_values_of, part.attach_handles))
    return _values_of(part) | {"attach_handles": handles}


def _values_of(one: Any) -> dict[str, Any]:
    """The values of a dataclass by their names, and each mapping as a dictionary of its own."""
    values = ((name, getattr(one, name)) for name in _names(one.__class__))
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in values
    }


@functools.cache
def _names(cls: type) -> tuple[str, ...]:
    """The names of a dataclass's fields."""
    return tuple(field.name for field in fields(cls))


def known_values(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a message that are fields of the dataclass. Unknown keys are left out."""
    return {name: data[name] for name in _names(cls) if name in data}


def handles_from_wire(data: Iterable[Mapping[str, Any]]) -> tuple[AttachHandle, ...]:
    """The attach handles of a message.

    :raises TypeError, ValueError: one of them is no attach handle
    """
    found = value_checks.items("attach_handles", data, Mapping)
    wanted = set(_names(AttachHandle))
    if not all(each.keys() >= wanted for each in found):
        raise TypeError(f"each of attach_handles must have {sorted(wanted)}, not {data!r}")
    return tuple(AttachHandle(**known_values(AttachHandle, each)) for each in found)


def _deployable_from_wire(data: Mapping[str, Any]) -> Deployable:
    values = known_values(Deployable, data)
    values["attach_handles"] = handles_from_wire(data["attach_handles"])
    for name in ("traits", "prepared"):
        if values.get(name) is not None:
            values[name] = value_checks.items(name, values[name], str)
    return Deployable(**values)


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
    """The host, as drivers see it in one discovery pass."""

    @property
    def name(self) -> str:
        """``[DEFAULT] host``; the names of deployables begin with it."""

    @property
    def pci(self) -> Snapshot:
        """The PCI functions: one walk a pass, made when a driver first reads this.

        :raises OSError: the walk is not complete, so an absent function need not be gone
        """

    @property
    def foreign(self) -> frozenset[str]:
        """Addresses of PCI functions that another driver has. They must not be reported.

        :raises OSError: as :attr:`pci`
        """


@runtime_checkable
class Driver(Protocol):
    """Finds the devices of one kind on one host.

    The class is an entry point of the group ``cyborg.accelerator.driver`` and is made with one
    argument, the configuration, without any I/O. Its ``driver_api`` is :data:`DRIVER_API`.
    """

    def discover(self, host: Host) -> Iterable[Device]:
        """Every device of this kind on the host.

        Called once a pass, never twice at a time. An exception means "not known", never
        "no devices": the devices known so far are kept.
        """


@runtime_checkable
class Matching(Protocol):
    """The driver says which PCI functions it matches before the pass, so that no two drivers
    report one.
    """

    def exactness(self, functions: Snapshot) -> Mapping[str, int]:
        """Addresses of the functions it would report, each with how exactly it matches.

        The driver with the largest number gets the function. The number counts the digits of ids
        and address that the driver, or the operator's list, matches. No I/O. After an exception
        the devices that :meth:`Driver.discover` finds in that pass are ignored.
        """


@runtime_checkable
class HealthReporting(Protocol):
    """The driver can check whether a device that it found is healthy."""

    def health(self, device: Device, host: Host) -> str | None:
        """A sentence that says what is wrong, or None if nothing is or nothing is known.

        Called in the thread of :meth:`Driver.discover`, after it. The sentence must stay the same
        as long as the problem does: each change is reported. An exception means "not known": the
        health of the device stays as it was.
        """


@runtime_checkable
class ProblemReporting(Protocol):
    """The driver can name devices that it left out and that an operator should set up."""

    def problems(self) -> Iterable[str]:
        """Sentences about the last :meth:`Driver.discover`, the same as long as the problems are.

        They are reported as the driver's error, together with what it found.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a PCI function is not offered, and the option that would change it, or what to do."""

    reason: str
    remedy: str = ""


@runtime_checkable
class Explaining(Protocol):
    """The driver can say why it does not offer a PCI function."""

    def why_not_offered(self, function: Function, functions: Snapshot) -> Refusal | None:
        """Why, by the last :meth:`Driver.discover`; None if the driver has no reason of its own."""


@runtime_checkable
class Listing(Protocol):
    """The driver has a list by which the operator selects PCI functions."""

    def named(self, functions: Snapshot) -> Set[str]:
        """The functions that the list selects and the driver could have, offered or not."""

    def unmatched(self, functions: Snapshot) -> Iterable[str]:
        """A sentence for each object of the list that selects nothing."""

    def entry(self, address: str, functions: Snapshot) -> str | None:
        """The object of the list that selects a function, or None."""


@runtime_checkable
class Measuring(Protocol):
    """The driver can read the sensors of a device that it found."""

    def readings(self, device: Device, host: Host) -> Mapping[str, float]:
        """The readings of now, by the names of :data:`cyborg.metrics.DEVICE_READINGS`.

        Called in the thread of :meth:`Driver.discover`, after it, if somebody may look at them.
        """


@runtime_checkable
class Remembering(Protocol):
    """The driver has facts that must outlive the agent."""

    def remember(self) -> None:
        """Write them below ``[DEFAULT] state_path``.

        The agent calls this after each pass; a preview of a pass does not. So what the agent alone
        may begin for the passes to come is begun here, too.
        """


@runtime_checkable
class Preparable(Protocol):
    """The handle needs a step on the host before a guest may use it.

    The step may run twice, and while a guest has the handle: it must not change a ready handle.
    """

    def prepare(self, handle: HeldHandle) -> None:
        """Make the handle ready, to the end; raise if it cannot be."""


@runtime_checkable
class Keyed(Protocol):
    """The driver makes a secret for each handle, without which nobody can use it."""

    def access_key(self, handle: HeldHandle) -> str | None:
        """The secret of a handle that is prepared; None if it has none.

        It goes to the owner of the handle, who asks for it, and to nobody else.
        """


@runtime_checkable
class Revocable(Protocol):
    """The driver can take back what it gives, which a host elsewhere may go on to use."""

    def given(self) -> Mapping[str, str]:
        """The ARQs that have been given handles, by the uuids of the handles."""

    def revoke(self, handle: str, arq: str) -> None:
        """Take back what that ARQ was given, unless the handle was given to another one since."""


@runtime_checkable
class Cleanable(Protocol):
    """The handle needs a step on the host after use, which may run twice.

    It runs for one handle of a card at a time, whichever drivers and PCI functions the card has.
    """

    def clean(self, handle: HeldHandle) -> None:
        """Remove every trace of the last use, to the end; raise if that cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or folder of the host that a container needs at a path of its own."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "bind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program of the host that the runtime starts, at the moment of that name.

    ``args`` begins with the name of the program itself; each of ``env`` is ``NAME=value``.
    """

    name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in HOOKS:
            raise ValueError(f"hook {self.name!r} is not one of {sorted(HOOKS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """The needs of a handle's container: device nodes by their paths, variables, mounts, hooks.

    ``cdi_devices`` are full names of devices in files that others keep, such as
    ``nvidia.com/gpu=GPU-…``: the agent copies what they say. See
    :mod:`cyborg.drivers.kept_cdi`, which finds those that are there. ``cdi_wanted`` are a kind and
    the nodes of one more device, which the agent looks for: without it the others are enough.
    """

    device_nodes: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    cdi_wanted: tuple[str, kept_cdi.Wanted] | None = None


@runtime_checkable
class Containable(Protocol):
    """The driver knows more of what a container needs than the kernel says."""

    def container_edits(self, handle: HeldHandle) -> ContainerEdits:
        """The needs of a container that uses the handle, which is prepared.

        ``env`` must have names that no other handle has, since a container may have several.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTarget:
    """The deployable to be programmed, and its device's control path.

    ``function`` is the id of the function that the bitstream should have, or None if it is not
    known. A driver that can read a bitstream's function refuses any other before it writes.
    ``until`` is when the permit to begin to write ends, by the clock of
    :mod:`cyborg.drivers.permit_clock`. ``signature`` has the properties of the image that sign the
    bitstream, if it is signed: a privileged helper verifies it again before it writes. ``restores``
    says that consumers have handles of what is written: nothing is taken that is left of these.
    """

    deployable: str
    control_path: ControlPath
    attach_handles: tuple[AttachHandle, ...]
    function: str | None = None
    until: float = math.inf
    signature: Mapping[str, str] = field(default_factory=dict)
    restores: bool = False

    def check_permit(self) -> None:
        """Raise NotPermitted if writing may not begin any more.

        Call this right before the first byte is written.
        """
        if permit_clock.is_over(self.until):
            raise NotPermitted("The permit to write has expired before anything was written")


@dataclass(frozen=True, slots=True, kw_only=True)
class Programmed:
    """The result of programming.

    ``function`` is what the hardware shows as loaded now, as in :class:`Deployable`;
    ``verified_by`` says in a few words how the driver knows that the bitstream is loaded.
    """

    function: str | None
    verified_by: str

    def __post_init__(self) -> None:
        value_checks.text("verified_by", self.verified_by, value_checks.NAME_MAX)
        if self.function is not None:
            value_checks.function_id(self.function)


class NothingWritten(Exception):
    """A driver refused a bitstream and changed nothing: the former program still runs."""


class NotPermitted(NothingWritten):
    """It took too long until writing could begin; it must be asked for again."""


class BeingWritten(Exception):
    """A process that was started before still writes the device; nothing else was done."""


@runtime_checkable
class Programmable(Protocol):
    """The driver can load another function into deployables with a ``program_mode``.

    It may run twice, but never for two deployables of one device at once. No guest has a handle of
    the deployable, unless the hardware has lost its program: then the same program is written
    again while guests have handles, and those, such as virtual functions, must not change.
    """

    def program(self, target: ProgramTarget, bitstream: pathlib.Path) -> Programmed:
        """Load the bitstream, and verify that it is loaded.

        The file is complete, its hash is verified, and nothing changes it meanwhile.

        :raises NothingWritten: it was refused, and the former program still runs. After any other
            exception except the next ones the deployable counts as unprogrammed
        :raises NotPermitted: as :meth:`ProgramTarget.check_permit`; nothing was written either
        :raises BeingWritten: the call must be repeated later, as the result is not known yet
        """


@runtime_checkable
class Reconfigurable(Protocol):
    """The driver can give another layout to deployables whose ``program_mode`` is :data:`LAYOUT`.

    The rules of :class:`Programmable` about running twice and about guests hold here too. The
    handles may be others afterwards, unless it is the layout that guests have lost.
    """

    def set_layout(self, target: ProgramTarget) -> Programmed:
        """Give the deployable the layout ``target.function``, and wait until the hardware shows it.

        :raises NothingWritten, NotPermitted, BeingWritten: as :meth:`Programmable.program`
        """
