# SPDX-License-Identifier: Apache-2.0
"""The payloads of messages. They travel as plain data; a receiver ignores unknown keys."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Self

from cyborg import metrics
from cyborg.drivers import base, value_checks
from cyborg.rpc.faults import Unreadable

#: Which of what conductors have ever derived from a report: raised when that changes.
_DERIVED = 1

#: What is raised inside for data that is no message.
_FAULTS = (AttributeError, KeyError, TypeError, ValueError, RecursionError)

#: More PCI functions than any host has.
_FUNCTIONS_MAX = 1_000_000

#: Characters of the name of a driver, of texts by texts, and those that are quoted of a fault.
_DRIVER_MAX = 100
_TEXTS_MAX = 65_536
_QUOTED_MAX = 500
#: The most lines of a report about what is not offered.
REASONS_MAX, _REASONS = 50, "not_offered_reasons"

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,253}[A-Za-z0-9])?")


def is_host_name(value: object) -> bool:
    """True if a value of a message is the name of a host."""
    return isinstance(value, str) and _HOST_NAME.fullmatch(value) is not None


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Have whatever is wrong with the data of a message raise one error, with one sentence."""
    try:
        yield
    except _FAULTS as exc:
        said = f"it lacks {exc}" if isinstance(exc, KeyError) else f"{exc}"
        raise Unreadable(f"The message cannot be read: {said:.{_QUOTED_MAX}}") from exc


def _texts(name: str, value: object) -> None:
    value_checks.texts(name, value, _TEXTS_MAX)


#: What checks the value of a field, by the type with which it is declared.
_CHECKS: Mapping[str, Callable[[str, object], None]] = {
    "bool": value_checks.flag,
    "float": value_checks.seconds,
    "int": value_checks.number,
    "str": value_checks.storable,
    "Mapping[str, str]": _texts,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _WireMessage:
    """A payload that travels as it is, field by field."""

    def to_wire(self) -> dict[str, Any]:
        """The message as plain data."""
        return asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """The payload of a message. Unknown keys are ignored: the sender may be newer.

        :raises Unreadable: a field is missing, or its value is none that a database stores
        """
        with _reading():
            values = base.known_values(cls, _dictionary("The message", data))
            if "attach_handles" in values:
                values["attach_handles"] = base.handles_from_wire(values["attach_handles"])
            if "readings" in values:
                values["readings"] = _readings(values)
            for each in fields(cls):
                if each.name in values:
                    _check(each.name, str(each.type), values[each.name])
                elif each.default is each.default_factory is MISSING:
                    raise KeyError(each.name)
            one = cls(**values)
            one.parts()
            return one

    def parts(self) -> None:
        """Make what a driver gets, if it is for one.

        :raises TypeError, ValueError: no driver reports such a thing
        """


def _check(name: str, declared: str, value: object) -> None:
    """Raise TypeError or ValueError if a field has no such value; dataclasses check themselves."""
    kind = declared.removesuffix(" | None")
    if kind in _CHECKS and not (kind != declared and value is None):
        _CHECKS[kind](name, value)


def _dictionary(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} must be a dictionary, not {value!r:.{_QUOTED_MAX}}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """Everything one host has, as of one discovery pass.

    ``started`` is when the agent started, in milliseconds since the epoch, and ``counter`` counts
    its passes: together they order the reports of a host. ``devices`` has what each driver found,
    without the drivers that failed; ``errors`` has sentences by driver, also about drivers that
    found devices. ``unread`` are addresses of PCI functions that could not be read: what is known
    of devices with one of them stays as it is. ``not_offered`` counts the accelerators that no
    driver offers, and ``not_offered_reasons`` say why; None if nobody looked. ``unknown`` has the
    types and infos of the control paths of devices that were on the wire and are not in
    ``devices``, because this release does not know what was said of them. ``present`` are the
    buses with functions that are no bridges, each with its vendor; none if nobody looked.
    ``readings`` are those of the devices' sensors, by the devices' places. They are no news.
    """

    host: str
    node: str
    started: int
    counter: int
    errors: Mapping[str, str]
    devices: Mapping[str, tuple[base.Device, ...]]
    unread: tuple[str, ...] = ()
    not_offered: int | None = None
    not_offered_reasons: tuple[str, ...] = ()
    unknown: frozenset[tuple[str, str]] = frozenset()
    present: tuple[str, ...] = ()
    readings: metrics.Readings = field(default_factory=dict, compare=False)

    def digest(self) -> str:
        """A hash that is equal for reports with the same content, whenever they were made.

        It changes with what conductors derive from a report, so that the next one is read in full.
        """
        said = {key: value for key, value in self.to_wire().items() if key in _SAID}
        said["derived"] = _DERIVED
        return hashlib.sha256(base.canonical_json(said).encode()).hexdigest()

    def unchanged(self) -> UnchangedReport:
        """The message in the report's place if a conductor has stored one of the same content."""
        return UnchangedReport(
            host=self.host,
            started=self.started,
            counter=self.counter,
            digest=self.digest(),
            readings=self.readings,
        )

    def to_wire(self) -> dict[str, Any]:
        """The report as plain data."""
        plain = ("host", "node", "started", "counter", "not_offered", "readings")
        lists = ("unread", "present", _REASONS)
        devices = {
            driver: [device.to_wire() for device in found] for driver, found in self.devices.items()
        }
        return {
            **{name: getattr(self, name) for name in plain},
            **{name: list(getattr(self, name)) for name in lists},
            "errors": dict(self.errors),
            "devices": devices,
        }

    @classmethod
    @_reading()
    def from_wire(cls, data: Mapping[str, Any]) -> HostReport:
        """The report of a message. Unknown keys are ignored: the sender may be newer.

        So may its words be: a device with an unknown one is left out, with an error of its driver.

        :raises Unreadable: the data is no report
        """
        _check_numbers(_dictionary("The report", data))
        errors = dict(_dictionary("errors", data.get("errors", {})))
        devices = _dictionary("devices", data["devices"])
        unread = value_checks.items("unread", data.get("unread", ()), str)
        why = value_checks.items(_REASONS, data.get(_REASONS, ()), str)
        why = tuple(each[:_QUOTED_MAX] for each in why[:REASONS_MAX])
        for driver in (*errors, *devices):
            value_checks.text("driver", driver, _DRIVER_MAX)
        _check_texts(host=[data["host"]], node=[data["node"]], errors=errors.values())
        _check_texts(unread=unread, not_offered_reasons=why)
        read = {driver: _read(driver, found) for driver, found in devices.items()}
        for driver, found in read.items():
            if found.errors:
                errors[driver] = "; ".join(filter(None, [errors.get(driver), *found.errors]))
        return cls(
            host=data["host"],
            node=data["node"],
            started=data["started"],
            counter=data["counter"],
            errors=errors,
            # A driver with an error and without devices has failed: those it has are kept.
            devices={driver: found.devices for driver, found in read.items() if not found.lost},
            unread=unread,
            not_offered=data.get("not_offered"),
            present=value_checks.items("present", data.get("present", ()), str),
            not_offered_reasons=why,
            unknown=frozenset(path for found in read.values() for path in found.unknown),
            readings=_readings(data),
        )


def _readings(data: Mapping[str, Any]) -> metrics.Readings:
    return metrics.known_readings(_dictionary("readings", data.get("readings", {})))


def _check_texts(**named: Iterable[object]) -> None:
    """Raise TypeError or ValueError if one of some texts is none that a database stores."""
    for name, texts in named.items():
        for each in texts:
            value_checks.storable(name, each)


def _check_numbers(report: Mapping[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError if a number of a report is none."""
    for name in ("started", "counter"):
        value_checks.number(name, report[name])
    if report.get("not_offered") is not None:
        value_checks.number("not_offered", report["not_offered"], _FUNCTIONS_MAX)


#: Devices of a driver that are read at all, and sentences on those that cannot be.
_DEVICES_MAX, _SAID_MAX = 65_536, 20


@dataclass(slots=True)
class _Read:
    """The devices of a driver, as far as they could be read."""

    devices: tuple[base.Device, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()
    errors: tuple[str, ...] = ()
    #: Whether there is a device of which not even the control path could be read.
    lost: bool = False


def _read(driver: str, devices: object) -> _Read:
    found, read, unknown = _Read(), [], []
    errors: list[str] = []
    listed = value_checks.items(f"devices of {driver}", devices)
    if len(listed) > _DEVICES_MAX:
        raise ValueError(f"{len(listed)} devices of {driver} are more than a host has")
    for data in listed:
        try:
            read.append(base.Device.from_wire(data))
        except _FAULTS as exc:
            path = _path(data)
            name = "a device" if path is None else f"device {' '.join(path)}"
            because = "perhaps because cyborg-agent is newer than cyborg-conductor"
            said = f"{exc}"[:_QUOTED_MAX]
            if len(errors) < _SAID_MAX:
                errors.append(f"{name} is left out, {because}: {type(exc).__name__}: {said}")
            unknown += [] if path is None else [path]
            found.lost = found.lost or path is None
    found.devices, found.unknown, found.errors = tuple(read), tuple(unknown), tuple(errors)
    return found


def _path(data: Mapping[str, Any]) -> tuple[str, str] | None:
    try:
        path = base.ControlPath(**base.known_values(base.ControlPath, data["control_path"]))
        return path.cpid_type, base.canonical_json(dict(path.cpid_info))
    except _FAULTS:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnchangedReport(_WireMessage):
    """A report whose content, of which this is the digest, the conductor has already."""

    host: str
    started: int
    counter: int
    digest: str
    readings: metrics.Readings = field(default_factory=dict)


_SAID = frozenset({"host", "node", "errors", "devices", "unread", "not_offered"})
_SAID |= {"not_offered_reasons", "present"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStep(_WireMessage):
    """One idempotent step of a driver on one attach handle: ``prepare`` or ``clean``.

    ``cpid_type`` and ``cpid_info`` are the control path of the handle's device.
    ``asked_ms`` is the time of the request by the database's clock; a message that arrives after a
    newer one is recognised by it. ``agent_started`` is when the agent had started, by its last
    report: an agent that started later does not know newer requests. ``arq_uuid`` is the ARQ that
    holds the handle. ``consumer_nqn`` is under which name the consumer's host connects over a
    network, if that is another one. ``in_use`` says that the ARQ is Bound, so the handle is
    prepared again and its consumer may be using it. ``card_in_use`` says that other shares of the
    card have holders. ``card`` is what tells the device's card from others: nothing is done to
    another one.
    """

    action: str
    driver: str
    attach_handle_uuid: str
    attach_type: str
    attach_info: Mapping[str, str]
    cpid_type: str
    cpid_info: Mapping[str, str]
    asked_ms: int
    agent_started: int
    arq_uuid: str
    consumer_nqn: str | None = None
    in_use: bool = False
    card_in_use: bool = False
    card: Mapping[str, str] = field(default_factory=dict)

    def handle(self) -> base.HeldHandle:
        """The handle for a driver.

        :raises TypeError, ValueError: no driver reports such a handle
        """
        return base.HeldHandle(
            attach_type=self.attach_type,
            attach_info=self.attach_info,
            uuid=self.attach_handle_uuid,
            control_path=base.ControlPath(cpid_type=self.cpid_type, cpid_info=self.cpid_info),
            consumer_nqn=self.consumer_nqn,
            arq=self.arq_uuid,
            in_use=self.in_use,
            card_in_use=self.card_in_use,
        )

    def parts(self) -> None:
        """Make the handle."""
        self.handle()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStep(_WireMessage):
    """A request to load an image of Glance into a deployable, or to give it another layout.

    ``deployable`` is its name; ``cpid_type`` and ``cpid_info`` are the control path of its device.
    The image must have ``hash_value`` by ``hash_algo``; ``md5`` means Glance's checksum, for an
    image with nothing better. ``function_id`` is the function that must be loaded in the end, or
    None if it is not known. A layout has no image: ``image_uuid`` is empty, and ``function_id`` is
    the layout. ``signature`` has the image's signature properties, and is empty if it
    is not signed. ``operation_uuid`` is the operation that orders the write, and ``write`` which of
    its writes this is. ``restores`` says that consumers have handles of what was lost. The rest
    is as in :class:`HostStep`.
    """

    driver: str
    deployable: str
    deployable_uuid: str
    cpid_type: str
    cpid_info: Mapping[str, str]
    attach_handles: tuple[base.AttachHandle, ...]
    image_uuid: str
    size: int
    hash_algo: str
    hash_value: str
    function_id: str | None
    signature: Mapping[str, str] = field(default_factory=dict)
    operation_uuid: str
    write: int
    asked_ms: int
    agent_started: int
    card: Mapping[str, str] = field(default_factory=dict)
    restores: bool = False

    def target(self) -> base.ProgramTarget:
        """The target for a driver.

        :raises TypeError, ValueError: no driver reports such a deployable
        """
        return base.ProgramTarget(
            deployable=self.deployable,
            control_path=base.ControlPath(cpid_type=self.cpid_type, cpid_info=self.cpid_info),
            attach_handles=self.attach_handles,
            function=self.function_id,
            signature=self.signature,
            restores=self.restores,
        )

    def parts(self) -> None:
        """Make the target."""
        self.target()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest(_WireMessage):
    """A host asks whether it may write a deployable now.

    ``operation_uuid`` and ``write`` are those of the :class:`ProgramStep` that orders it.
    """

    host: str
    deployable_uuid: str
    operation_uuid: str
    write: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRequest(_WireMessage):
    """A host asks which of its attach handles are in use, and by whom.

    With ``by_place`` the answer has their infos, each with the instance if there is one, and not
    their uuids, each with the ARQ.
    """

    host: str
    by_place: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePermit(_WireMessage):
    """The answer: the host may write if it begins within ``seconds`` after it has asked.

    ``refused`` says why it may not, and is None if it may.
    """

    seconds: float
    refused: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAnswer(_WireMessage):
    """A deployable was programmed.

    ``function`` is what the hardware shows as loaded, or None if it cannot show it. A report of
    this agent with the counter ``report_counter`` or less may still show the former function.
    """

    function: str | None
    verified_by: str
    report_counter: int

    def __post_init__(self) -> None:
        # What a driver returns is checked in the same way.
        base.Programmed(function=self.function, verified_by=self.verified_by)
