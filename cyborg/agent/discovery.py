# SPDX-License-Identifier: Apache-2.0
"""One discovery pass: the devices that each driver finds and may report."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from cyborg import metrics
from cyborg.agent import background_calls, ownership
from cyborg.agent.background_calls import BackgroundCall
from cyborg.drivers import base, function_owners, pci
from cyborg.drivers.pci import host_use

LOG = logging.getLogger(__name__)

#: The most devices of one driver: one that never ends must not fill the memory.
_DEVICES_MAX = 10_000

_SENTENCE_MAX = 1000

#: The name under which the errors of the walk are reported, beside those of drivers.
WALK = "pci"
_FAULTS_SHOWN = 3

#: The look at which of the matched functions a program of the host has open.
Look = Callable[[pci.Snapshot, Iterable[str]], host_use.Uses]

#: The part of the time-out in which drivers must answer which functions they match.
_MATCH_PART = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of a pass: devices of the drivers that answered, and sentences by driver.

    ``unread`` are addresses of PCI functions that could not be read. What is known of devices with
    one of them stays as it is. ``functions`` are those of the walk, if a driver asked.
    ``readings`` are those of the devices' sensors, by the devices' places.
    """

    devices: Mapping[str, ownership.Devices]
    errors: Mapping[str, str]
    unread: frozenset[str] = frozenset()
    functions: pci.Snapshot | None = None
    readings: metrics.Readings = field(default_factory=dict)

    @property
    def present(self) -> tuple[str, ...]:
        """The buses with functions that are no bridges, each with their vendor, if known."""
        functions = (self.functions or {}).values()
        found = (each for each in functions if not each.class_code.startswith("06"))
        return tuple(sorted({f"{each.address.rpartition(':')[0]} {each.vendor}" for each in found}))


@dataclass(frozen=True, slots=True)
class _DriverAnswer:
    """The finds of one driver, and sentences about what it left out or could not check."""

    devices: ownership.Devices
    errors: tuple[str, ...] = ()
    readings: metrics.Readings = field(default_factory=dict)


class HostView:
    """The host as one pass sees it. The walk is made when a driver first asks for PCI functions.

    ``matching`` are the drivers that say which functions they match.
    """

    def __init__(
        self,
        name: str,
        matching: Mapping[str, base.Matching],
        *,
        match_timeout: float,
        look: Look | None = None,
    ) -> None:
        self.name = name
        #: How exactly drivers match; empty until a driver asks for the owners.
        self.answers = ownership.Answers(exactness={}, hanging={}, errors={})
        self._matching = matching
        self._match_timeout = match_timeout
        self._walk_lock = threading.Lock()
        self._owners_lock = threading.Lock()
        self._look_lock = threading.Lock()
        self._look = look
        self._opened: host_use.Uses | None = None
        #: The PCI functions, or None if no driver has asked for them.
        self.walked: pci.Snapshot | None = None
        self._owners: function_owners.Owners | None = None

    @property
    def pci(self) -> pci.Snapshot:
        """The PCI functions, the same for every driver of the pass."""
        with self._walk_lock:
            if self.walked is None:
                self.walked = pci.scan()
                if self._look is not None:
                    self.walked.opened = functools.partial(self._looked, self._look)
            return self.walked

    def _looked(self, look: Look) -> host_use.Uses:
        """The functions that programs of the host have open, from one look at most."""
        owners = self.owners.of
        with self._look_lock:
            if self._opened is None:
                self._opened = look(self.pci, owners)
            return self._opened

    @property
    def owners(self) -> function_owners.Owners:
        """Which driver may report which function."""
        functions = self.pci
        with self._owners_lock:
            if self._owners is None:
                self.answers = ownership.ask(self._matching, functions, self._match_timeout)
                self._owners = function_owners.assign(self.answers.exactness)
            return self._owners

    @property
    def ties(self) -> Mapping[str, str]:
        """Sentences for drivers that lost a tie, if any driver has asked for the owners."""
        return self._owners.ties if self._owners is not None else {}


class _DriversView:
    """The host as one driver sees it."""

    def __init__(self, host: HostView, driver: str) -> None:
        self.driver = driver
        self.name = host.name
        self._host = host

    @functools.cached_property
    def pci(self) -> pci.Snapshot:
        return self._host.pci

    @functools.cached_property
    def foreign(self) -> frozenset[str]:
        return self._host.owners.foreign_to(self.driver)


class Discovery:
    """Makes passes. Remembers which drivers still hang and what each driver has reported.

    ``measured`` says that somebody may look at the readings of sensors.
    """

    def __init__(
        self,
        host: str,
        drivers: Mapping[str, base.Driver],
        *,
        timeout: float,
        look: Look | None = None,
        measured: bool = False,
    ) -> None:
        self._host = host
        self._look = look
        self._drivers = drivers
        self._measured = measured
        #: May be changed between two passes.
        self.timeout = timeout
        self._hanging: dict[
            str, BackgroundCall[_DriverAnswer] | BackgroundCall[function_owners.Exactness]
        ] = {}
        self._ownership = ownership.Ownership(drivers)

    def run(self) -> Findings:
        """Make one pass. Takes as long as the drivers do, hardly more than the time-out."""
        self._hanging = {name: call for name, call in self._hanging.items() if not call.done(0)}
        ready = {name: each for name, each in self._drivers.items() if name not in self._hanging}
        host = HostView(
            self._host,
            {name: each for name, each in ready.items() if isinstance(each, base.Matching)},
            match_timeout=self.timeout / _MATCH_PART,
            look=self._look,
        )
        calls = {
            name: functools.partial(
                _discover, each, _DriversView(host, name), measured=self._measured
            )
            for name, each in ready.items()
        }
        # The same words at every pass, so that an unchanged report stays unchanged.
        errors = dict.fromkeys(self._hanging, self._hangs())
        devices = {}
        read: dict[str, metrics.Readings] = {}
        for name, call in background_calls.call_all("discover", calls, self.timeout).items():
            if not call.done(0):
                LOG.error("Driver %s hangs; it is not called again until it returns", name)
                self._hanging[name] = call
                errors[name] = self._hangs()
            elif call.value is None:
                errors[name] = call.error or ""
            else:
                devices[name] = call.value.devices
                read[name] = call.value.readings
                if call.value.errors:
                    errors[name] = "; ".join(call.value.errors)[:_SENTENCE_MAX]
        self._show_no_readings_without(devices)
        # Without an answer of each driver, what a driver found may be another driver's.
        for name, match_call in host.answers.hanging.items():
            devices.pop(name, None)
            errors[name] = self._hangs()
            self._hanging.setdefault(name, match_call)
        for name, sentence in host.answers.errors.items():
            devices.pop(name, None)
            errors.setdefault(name, sentence)
        functions = host.walked
        accepted = self._ownership.accept(devices, errors, functions or {})
        for name, sentence in host.ties.items():
            errors.setdefault(name, sentence)
        readings = _some_of(read.get(name, {}) for name in accepted)
        if functions is None:
            return Findings(devices=accepted, errors=errors, readings=readings)
        if functions.faults:
            errors[WALK] = _shortened(functions.faults)
        return Findings(
            devices=accepted,
            errors=errors,
            unread=functions.unread,
            functions=functions,
            readings=readings,
        )

    def remember(self) -> None:
        """Let the drivers write what must outlive this process."""
        for name, each in self._drivers.items():
            if isinstance(each, base.Remembering):
                try:
                    each.remember()
                except Exception:
                    LOG.exception("Driver %s cannot keep what it has read", name)

    def _show_no_readings_without(self, answered: Container[str]) -> None:
        """Show no readings of drivers that have not answered: those shown are of a pass before."""
        for name, each in self._drivers.items():
            if self._measured and isinstance(each, base.Measuring) and name not in answered:
                metrics.devices_read(name, {})

    def _hangs(self) -> str:
        return f"Discovery does not end within {self.timeout:g} seconds"


def _some_of(read: Iterable[metrics.Readings]) -> metrics.Readings:
    """As many readings as a report may have: of each driver in turn, so that none takes all."""
    turns = itertools.zip_longest(*(each.items() for each in read))
    return metrics.known_readings(dict(filter(None, itertools.chain.from_iterable(turns))))


def _shortened(faults: Mapping[str, str]) -> str:
    shown = [f"PCI function {name}: {faults[name]}" for name in sorted(faults)[:_FAULTS_SHOWN]]
    more = len(faults) - len(shown)
    return "; ".join([*shown, f"and {more} more"] if more > 0 else shown)[:_SENTENCE_MAX]


def _discover(driver: base.Driver, host: _DriversView, *, measured: bool) -> _DriverAnswer:
    labels = {"driver": host.driver, "outcome": "failed"}
    with metrics.observed(metrics.DRIVER_SECONDS, **labels) as seen:
        found = _with_health(_checked(driver.discover(host)), driver, host)
        if isinstance(driver, base.ProblemReporting):
            problems = tuple(map(str, driver.problems()))
            found = _DriverAnswer(found.devices, (*found.errors, *problems))
        seen["outcome"] = "found"
    if measured and isinstance(driver, base.Measuring):
        cards, readings = _readings(found.devices, driver, host)
        metrics.devices_read(host.driver, cards)
        found = replace(found, readings=readings)
    return found


def _readings(
    devices: ownership.Devices, driver: base.Measuring, host: base.Host
) -> tuple[metrics.Readings, metrics.Readings]:
    """The readings of sensors by the places of cards, and by those of the devices.

    Parts of a card have the card's.
    """
    cards: dict[str, Mapping[str, float]] = {}
    found: dict[str, Mapping[str, float]] = {}
    for device in devices:
        if len(cards) == metrics.READINGS_MAX:
            break
        place = base.place(device.control_path.cpid_info)
        function = host.pci.get(place)
        card = (function.pf if function is not None else None) or place
        try:
            if card not in cards:
                cards[card] = driver.readings(device, host)
            if cards[card]:
                found[place] = cards[card]
        except Exception:
            LOG.info("The sensors of %s cannot be read", card, exc_info=True)
    return cards, found


def _checked(found: Iterable[base.Device]) -> ownership.Devices:
    devices = tuple(itertools.islice(found, _DEVICES_MAX + 1))
    if len(devices) > _DEVICES_MAX:
        raise ValueError(f"discover() returned more than {_DEVICES_MAX} devices")
    for device in devices:
        if not isinstance(device, base.Device):
            raise TypeError(f"discover() returned a {type(device).__name__}, not a Device")
        twice = ownership.given_twice(device)
        if twice is not None:
            raise ValueError(f"discover() returned PCI function {twice} twice in one device")
    return devices


def _with_health(
    devices: ownership.Devices, driver: base.Driver, host: base.Host
) -> _DriverAnswer:
    """The devices with what is wrong with them, if the driver can check that."""
    if not isinstance(driver, base.HealthReporting):
        return _DriverAnswer(devices)
    checked, errors = [], []
    for device in devices:
        try:
            sentence = device.unhealthy or driver.health(device, host)
        except Exception as exc:
            path = device.control_path.place
            LOG.warning("The health of %s cannot be told", path, exc_info=True)
            errors.append(
                f"The health of {path} cannot be told, {type(exc).__name__}: {exc}"
            )
            checked.append(replace(device, health_unknown=True))
        else:
            checked.append(device if sentence is None else replace(device, unhealthy=sentence))
    return _DriverAnswer(tuple(checked), tuple(errors))
