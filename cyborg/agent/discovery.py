# SPDX-License-Identifier: Apache-2.0
"""One discovery pass: what every driver finds, then who may report what."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from cyborg import metrics
from cyborg.agent import attempt, claims
from cyborg.drivers import base, pci

LOG = logging.getLogger(__name__)

#: The most devices of one driver: one that never ends must not fill the memory.
_DEVICES_MAX = 10_000

_SENTENCE_MAX = 1000

#: The part of the time-out that drivers have to say which functions they mean.
_CLAIM_PART = 4

#: Devices, each with what may exist only once on a host.
_Claimed = Sequence[tuple[base.Device, Set[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a pass found: devices of the drivers that answered, a sentence for each other."""

    devices: Mapping[str, tuple[base.Device, ...]]
    errors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one driver found, and sentences about what it left out or could not tell."""

    devices: tuple[base.Device, ...]
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Able:
    """A driver with those of its abilities that a pass uses: to find out takes a while."""

    driver: base.Driver
    claiming: base.Claiming | None
    judging: base.HealthReporting | None
    complaining: base.Complaining | None

    @classmethod
    def of(cls, driver: base.Driver) -> _Able:
        """The driver as it is."""
        return cls(
            driver=driver,
            claiming=driver if isinstance(driver, base.Claiming) else None,
            judging=driver if isinstance(driver, base.HealthReporting) else None,
            complaining=driver if isinstance(driver, base.Complaining) else None,
        )


class HostView:
    """The host as one pass sees it. The first driver to ask for PCI functions makes the walk.

    ``claiming`` are the drivers that can say which functions they mean.
    """

    def __init__(
        self, name: str, claiming: Mapping[str, base.Claiming], *, patience: float
    ) -> None:
        self.name = name
        #: What drivers say that they claim, as far as it was asked.
        self.answers = claims.Answers(told={}, silent={}, errors={})
        self._claiming = claiming
        self._patience = patience
        self._walking = threading.Lock()
        self._settling = threading.Lock()
        self._functions: pci.Snapshot | None = None
        self._owners: claims.Owners | None = None

    @property
    def walked(self) -> Mapping[str, pci.Function]:
        """The PCI functions, as far as any driver has asked for them."""
        return self._functions or {}

    @property
    def pci(self) -> pci.Snapshot:
        """The PCI functions, the same for every driver of the pass."""
        with self._walking:
            if self._functions is None:
                self._functions = pci.scan()
            return self._functions

    @property
    def owners(self) -> claims.Owners:
        """Which driver may report which function."""
        functions = self.pci
        with self._settling:
            if self._owners is None:
                self.answers = claims.ask(self._claiming, functions, self._patience)
                self._owners = claims.settle(self.answers.told)
            return self._owners

    @property
    def ties(self) -> Mapping[str, str]:
        """What drivers lost to others whose claim is no better, as far as it was asked."""
        return self._owners.ties if self._owners is not None else {}


class _DriversView:
    """The host as one driver sees it."""

    def __init__(self, host: HostView, driver: str) -> None:
        self.driver = driver
        self.name = host.name
        self._host = host

    @property
    def pci(self) -> pci.Snapshot:
        return self._host.pci

    @functools.cached_property
    def foreign(self) -> frozenset[str]:
        return self._host.owners.foreign_to(self.driver)


class Discovery:
    """Makes passes. Remembers which driver still hangs and what each driver owns."""

    def __init__(self, host: str, drivers: Mapping[str, base.Driver], *, timeout: float) -> None:
        self._host = host
        self._drivers = {name: _Able.of(driver) for name, driver in drivers.items()}
        #: May be changed between two passes.
        self.timeout = timeout
        self._hanging: dict[
            str, attempt.Attempt[_Answer] | attempt.Attempt[claims.Claims]
        ] = {}
        self._known: dict[str, tuple[base.Device, ...]] = {}

    def run(self) -> Findings:
        """Make one pass. Takes as long as the drivers do, hardly more than the time-out."""
        self._hanging = {name: call for name, call in self._hanging.items() if not call.done(0)}
        asked = {name: able for name, able in self._drivers.items() if name not in self._hanging}
        host = HostView(
            self._host,
            {name: able.claiming for name, able in asked.items() if able.claiming is not None},
            patience=self.timeout / _CLAIM_PART,
        )
        calls = {
            name: functools.partial(_discover, able, _DriversView(host, name))
            for name, able in asked.items()
        }
        # The same words at every pass, so that an unchanged report stays unchanged.
        errors = dict.fromkeys(self._hanging, self._hangs())
        devices = {}
        for name, call in attempt.each("discover", calls, self.timeout).items():
            if not call.done(0):
                LOG.error("Driver %s hangs; it is left alone until it returns", name)
                self._hanging[name] = call
                errors[name] = self._hangs()
            elif call.value is None:
                errors[name] = call.error or ""
            else:
                devices[name] = call.value.devices
                if call.value.errors:
                    errors[name] = "; ".join(call.value.errors)[:_SENTENCE_MAX]
        # What these found meanwhile, they found without knowing what is their own.
        for name, question in host.answers.silent.items():
            devices.pop(name, None)
            errors[name] = self._hangs()
            self._hanging.setdefault(name, question)
        for name, sentence in host.answers.errors.items():
            devices.pop(name, None)
            errors.setdefault(name, sentence)
        accepted = self._settle(devices, errors, host.walked)
        for name, sentence in host.ties.items():
            errors.setdefault(name, sentence)
        return Findings(devices=accepted, errors=errors)

    def _hangs(self) -> str:
        return f"Discovery does not end within {self.timeout:g} seconds"

    def _settle(
        self,
        devices: Mapping[str, tuple[base.Device, ...]],
        errors: dict[str, str],
        functions: Mapping[str, pci.Function],
    ) -> dict[str, tuple[base.Device, ...]]:
        """What may be reported of what was found: nothing twice, and nothing that another owns."""
        found = {
            name: tuple(claims.of_devices(each, functions)) for name, each in devices.items()
        }
        accepted = dict(devices)
        untold = {name: each for name, each in self._known.items() if name not in devices}
        kept = [tuple(claims.of_devices(each, functions)) for each in untold.values()]
        if _repeated(itertools.chain(*found.values(), *kept)) is not None:
            accepted = self._arbitrate(found, errors, functions)
        self._known |= accepted
        return accepted

    def _arbitrate(
        self,
        found: Mapping[str, _Claimed],
        errors: dict[str, str],
        functions: Mapping[str, pci.Function],
    ) -> dict[str, tuple[base.Device, ...]]:
        """Leave out devices that are another driver's, wholly or in part.

        What a driver has reported before is its own as long as it reports it or cannot tell;
        among newcomers the order of ``enabled_drivers`` counts. A device that a driver has
        reported before stays as it was, where only what is new of it is another's.
        """
        before = {
            name: tuple(claims.of_devices(self._known.get(name, ()), functions))
            for name in self._drivers
        }
        owners: dict[str, str] = {}
        for name, reported in before.items():
            known = _all(reported)
            # An answer with anything twice may not count, and then all of it is kept.
            if name in found and _repeated(found[name]) is None:
                known &= _all(found[name])
            owners |= dict.fromkeys(known, name)
        accepted = {}
        for name, devices in found.items():
            mine, taken = _undisputed(name, devices, before[name], owners)
            if taken is not None:
                errors[name] = f"The driver reports {taken}, which is driver {owners[taken]}'s"
            twice = _repeated(mine)
            if twice is not None:
                errors[name] = f"The driver reports {twice} twice"
            else:
                owners |= dict.fromkeys(_all(mine), name)
                accepted[name] = tuple(device for device, _claims in mine)
            if taken is not None or twice is not None:
                LOG.error("Driver %s: %s", name, errors[name])
        return accepted


def _discover(able: _Able, host: _DriversView) -> _Answer:
    labels = {"driver": host.driver, "outcome": "failed"}
    with metrics.observed(metrics.DRIVER_SECONDS, **labels) as seen:
        found = _judged(_checked(able.driver.discover(host)), able.judging, host)
        if able.complaining is not None:
            complaints = tuple(map(str, able.complaining.complaints()))
            found = replace(found, errors=(*found.errors, *complaints))
        seen["outcome"] = "found"
        return found


def _checked(found: Iterable[base.Device]) -> tuple[base.Device, ...]:
    devices = tuple(itertools.islice(found, _DEVICES_MAX + 1))
    if len(devices) > _DEVICES_MAX:
        raise ValueError(f"discover() returned more than {_DEVICES_MAX} devices")
    for device in devices:
        if not isinstance(device, base.Device):
            raise TypeError(f"discover() returned a {type(device).__name__}, not a Device")
        twice = claims.given_twice(device)
        if twice is not None:
            raise ValueError(f"discover() returned PCI function {twice} twice in one device")
    return devices


def _judged(
    devices: tuple[base.Device, ...], judge: base.HealthReporting | None, host: base.Host
) -> _Answer:
    """The devices with what is wrong with them, where the driver can tell."""
    if judge is None:
        return _Answer(devices)
    judged, errors = [], []
    for device in devices:
        try:
            sentence = device.unhealthy or judge.health(device, host)
        except Exception as exc:
            path = device.control_path
            place = f"{path.cpid_type} {base.canonical_json(dict(path.cpid_info))}"
            LOG.warning("The health of %s cannot be told", place, exc_info=True)
            errors.append(f"The health of {place} cannot be told, {type(exc).__name__}: {exc}")
            judged.append(replace(device, health_unknown=True))
        else:
            judged.append(device if sentence is None else replace(device, unhealthy=sentence))
    return _Answer(tuple(judged), tuple(errors))


def _undisputed(
    name: str, found: _Claimed, before: _Claimed, owners: Mapping[str, str]
) -> tuple[_Claimed, str | None]:
    """What a driver may report, and the first thing that is another's."""
    mine, first = [], None
    known = {_place(device): (device, wanted) for device, wanted in before}
    for device, wanted in found:
        taken = _foreign(name, wanted, owners)
        if taken is None:
            mine.append((device, wanted))
            continue
        first = first or taken
        old = known.get(_place(device))
        if old is not None and _foreign(name, old[1], owners) is None:
            mine.append(old)
    return mine, first


def _foreign(name: str, wanted: Set[str], owners: Mapping[str, str]) -> str | None:
    return next((claim for claim in sorted(wanted) if owners.get(claim, name) != name), None)


def _place(device: base.Device) -> tuple[str, str]:
    path = device.control_path
    return path.cpid_type, base.canonical_json(dict(path.cpid_info))


def _all(devices: _Claimed) -> set[str]:
    return set().union(*(wanted for _device, wanted in devices))


def _repeated(devices: Iterable[tuple[base.Device, Set[str]]]) -> str | None:
    """What more than one device has, if anything."""
    counted = Counter(itertools.chain.from_iterable(wanted for _device, wanted in devices))
    return min((claim for claim, times in counted.items() if times > 1), default=None)
