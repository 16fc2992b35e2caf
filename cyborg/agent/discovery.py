# SPDX-License-Identifier: Apache-2.0
"""One discovery pass: every driver in a thread of its own, then who may report what."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cyborg import metrics
from cyborg.agent import claims
from cyborg.agent.attempt import Attempt
from cyborg.drivers import base, pci

LOG = logging.getLogger(__name__)

#: The most devices of one driver: one that never ends must not fill the memory.
_DEVICES_MAX = 10_000

_SENTENCE_MAX = 1000

#: The part of the time-out that a driver has to say which functions it means.
_CLAIM_PART = 4


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


class HostView:
    """The host as one pass sees it. The first driver to ask for PCI functions makes the walk."""

    def __init__(
        self, name: str, drivers: Mapping[str, base.Driver], *, patience: float
    ) -> None:
        self.name = name
        #: Drivers that do not end to say what they claim.
        self.silent: Mapping[str, Attempt[None]] = {}
        self._drivers = drivers
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
                told, self.silent = claims.ask(self._drivers, functions, self._patience)
                self._owners = claims.settle(told)
            return self._owners

    @property
    def ties(self) -> Mapping[str, str]:
        """What drivers lost to others whose claim is no better, as far as it was asked."""
        return self._owners.ties if self._owners is not None else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _DriversView:
    """The host as one driver sees it."""

    host: HostView
    driver: str

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def pci(self) -> pci.Snapshot:
        return self.host.pci

    @property
    def foreign(self) -> frozenset[str]:
        return self.host.owners.foreign_to(self.driver)


class Discovery:
    """Makes passes. Remembers which driver still hangs and what each driver owns."""

    def __init__(self, host: str, drivers: Mapping[str, base.Driver], *, timeout: float) -> None:
        self._host = host
        self._drivers = drivers
        #: May be changed between two passes.
        self.timeout = timeout
        self._hanging: dict[str, Attempt[_Answer] | Attempt[None]] = {}
        self._known: dict[str, tuple[base.Device, ...]] = {}

    def run(self) -> Findings:
        """Make one pass. Takes as long as the slowest driver, at most the time-out."""
        self._hanging = {
            name: attempt for name, attempt in self._hanging.items() if not attempt.done(0)
        }
        asked = {
            name: driver for name, driver in self._drivers.items() if name not in self._hanging
        }
        host = HostView(self._host, asked, patience=self.timeout / _CLAIM_PART)
        attempts = {name: _attempt(name, driver, host) for name, driver in asked.items()}
        deadline = time.monotonic() + self.timeout
        # The same words at every pass, so that an unchanged report stays unchanged.
        errors = dict.fromkeys(self._hanging, self._hangs())
        devices = {}
        for name, attempt in attempts.items():
            if not attempt.done(max(0.0, deadline - time.monotonic())):
                LOG.error("Driver %s hangs; it is left alone until it returns", name)
                self._hanging[name] = attempt
                errors[name] = self._hangs()
            elif attempt.value is None:
                errors[name] = attempt.error or ""
            else:
                devices[name] = attempt.value.devices
                if attempt.value.errors:
                    errors[name] = "; ".join(attempt.value.errors)[:_SENTENCE_MAX]
        for name, question in host.silent.items():
            # What it found meanwhile, it found without knowing what is its own.
            devices.pop(name, None)
            errors[name] = self._hangs()
            self._hanging.setdefault(name, question)
        return self._settle(devices, errors, host)

    def _hangs(self) -> str:
        return f"Discovery does not end within {self.timeout:g} seconds"

    def _settle(
        self,
        devices: dict[str, tuple[base.Device, ...]],
        errors: dict[str, str],
        host: HostView,
    ) -> Findings:
        """Refuse a driver that reports what another owns.

        What a driver has reported before is its own as long as it reports it or cannot tell;
        among newcomers the order of ``enabled_drivers`` counts.
        """
        owners: dict[str, str] = {}
        for name in self._drivers:
            known = set(_claims(self._known.get(name, ()), host))
            if name in devices:
                known &= set(_claims(devices[name], host))
            owners |= dict.fromkeys(known, name)
        accepted = {}
        for name, found in devices.items():
            wanted = _claims(found, host)
            twice = next((claim for claim, times in Counter(wanted).items() if times > 1), None)
            taken = next((claim for claim in wanted if owners.get(claim, name) != name), None)
            if twice is not None:
                errors[name] = f"The driver reports {twice} twice, once as a part of another device"
                LOG.error("Driver %s: %s", name, errors[name])
                continue
            if taken is not None:
                errors[name] = f"The driver reports {taken}, which is driver {owners[taken]}'s"
                LOG.error("Driver %s: %s", name, errors[name])
                continue
            owners |= dict.fromkeys(wanted, name)
            accepted[name] = found
        self._known |= accepted
        for name, sentence in host.ties.items():
            errors.setdefault(name, sentence)
        return Findings(devices=accepted, errors=errors)


def _attempt(name: str, driver: base.Driver, host: HostView) -> Attempt[_Answer]:
    view = _DriversView(host=host, driver=name)
    return Attempt(f"discover-{name}", functools.partial(_discover, name, driver, view))


def _discover(name: str, driver: base.Driver, host: base.Host) -> _Answer:
    labels = {"driver": name, "outcome": "failed"}
    with metrics.observed(metrics.DRIVER_SECONDS, **labels) as seen:
        found = _judged(_checked(driver.discover(host)), driver, host)
        if isinstance(driver, base.Complaining):
            found = replace(found, errors=(*found.errors, *driver.complaints()))
        seen["outcome"] = "found"
        return found


def _checked(found: Iterable[base.Device]) -> tuple[base.Device, ...]:
    devices = tuple(itertools.islice(found, _DEVICES_MAX + 1))
    if len(devices) > _DEVICES_MAX:
        raise ValueError(f"discover() returned more than {_DEVICES_MAX} devices")
    for device in devices:
        if not isinstance(device, base.Device):
            raise TypeError(f"discover() returned a {type(device).__name__}, not a Device")
    counted = Counter(
        claim for _device, wanted in claims.of_devices(devices, {}) for claim in wanted
    )
    (claim, times), *_ = counted.most_common(1) or [("", 0)]
    if times > 1:
        raise ValueError(f"discover() returned {claim} twice")
    return devices


def _judged(
    devices: tuple[base.Device, ...], driver: base.Driver, host: base.Host
) -> _Answer:
    """The devices with what is wrong with them, where the driver can tell."""
    if not isinstance(driver, base.HealthReporting):
        return _Answer(devices)
    judged, errors = [], []
    for device in devices:
        try:
            sentence = device.unhealthy or driver.health(device, host)
        except Exception as exc:
            path = device.control_path
            place = f"{path.cpid_type} {base.canonical_json(dict(path.cpid_info))}"
            LOG.warning("The health of %s cannot be told", place, exc_info=True)
            errors.append(f"The health of {place} cannot be told, {type(exc).__name__}: {exc}")
            judged.append(replace(device, health_unknown=True))
        else:
            judged.append(replace(device, unhealthy=sentence))
    return _Answer(tuple(judged), tuple(errors))


def _claims(devices: Iterable[base.Device], host: HostView) -> list[str]:
    """What may exist only once on a host and these devices have."""
    return sorted(
        claim for _device, wanted in claims.of_devices(devices, host.walked) for claim in wanted
    )
