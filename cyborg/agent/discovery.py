# SPDX-License-Identifier: Apache-2.0
"""One discovery pass: every driver in a thread of its own, then who may report what."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cyborg.drivers import base, pci

LOG = logging.getLogger(__name__)

_SENTENCE_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a pass found: devices of the drivers that answered, a sentence for each other."""

    devices: Mapping[str, tuple[base.Device, ...]]
    errors: Mapping[str, str]


class HostView:
    """The host as one pass sees it. The first driver to ask for PCI functions makes the walk."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._walking = threading.Lock()
        self._functions: pci.Snapshot | None = None

    @property
    def pci(self) -> pci.Snapshot:
        """The PCI functions, the same for every driver of the pass."""
        with self._walking:
            if self._functions is None:
                self._functions = pci.scan()
            return self._functions


class _Attempt:
    """One call of a driver's ``discover`` in a daemon thread, which may outlive the pass."""

    def __init__(self, name: str, driver: base.Driver, host: base.Host) -> None:
        self.devices: tuple[base.Device, ...] = ()
        self.error: str | None = "The driver ended without an answer"
        self._thread = threading.Thread(
            target=self._run, args=(driver, host), name=f"discover-{name}", daemon=True
        )
        self._thread.start()

    def done(self, timeout: float) -> bool:
        """Whether the driver has returned, waiting at most ``timeout`` seconds for it."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self, driver: base.Driver, host: base.Host) -> None:
        try:
            self.devices = _checked(driver.discover(host))
            self.error = None
        except Exception as exc:
            LOG.warning("Discovery failed", exc_info=True)
            self.error = f"{type(exc).__name__}: {exc}"[:_SENTENCE_MAX]


class Discovery:
    """Makes passes. Remembers which driver still hangs and what each driver owns."""

    def __init__(self, host: str, drivers: Mapping[str, base.Driver], *, timeout: float) -> None:
        self._host = host
        self._drivers = drivers
        self._timeout = timeout
        self._hanging: dict[str, _Attempt] = {}
        self._known: dict[str, tuple[base.Device, ...]] = {}

    def run(self) -> Findings:
        """Make one pass. Takes as long as the slowest driver, at most the time-out."""
        self._hanging = {
            name: attempt for name, attempt in self._hanging.items() if not attempt.done(0)
        }
        host = HostView(self._host)
        attempts = {
            name: _Attempt(name, driver, host)
            for name, driver in self._drivers.items()
            if name not in self._hanging
        }
        deadline = time.monotonic() + self._timeout
        # The same words at every pass, so that an unchanged report stays unchanged.
        errors = dict.fromkeys(self._hanging, self._hangs())
        devices = {}
        for name, attempt in attempts.items():
            if not attempt.done(max(0.0, deadline - time.monotonic())):
                LOG.error("Driver %s hangs; it is left alone until it returns", name)
                self._hanging[name] = attempt
                errors[name] = self._hangs()
            elif attempt.error is not None:
                errors[name] = attempt.error
            else:
                devices[name] = attempt.devices
        return self._settle(devices, errors)

    def _hangs(self) -> str:
        return f"Discovery does not end within {self._timeout:g} seconds"

    def _settle(
        self, devices: dict[str, tuple[base.Device, ...]], errors: dict[str, str]
    ) -> Findings:
        """Refuse a driver that reports what another owns.

        What a driver has reported before is its own as long as it reports it or cannot tell;
        among newcomers the order of ``enabled_drivers`` counts.
        """
        owners: dict[str, str] = {}
        for name in self._drivers:
            known = set(_claims(self._known.get(name, ())))
            if name in devices:
                known &= set(_claims(devices[name]))
            owners |= dict.fromkeys(known, name)
        accepted = {}
        for name, found in devices.items():
            claims = _claims(found)
            taken = next((claim for claim in claims if owners.get(claim, name) != name), None)
            if taken is not None:
                errors[name] = f"The driver reports {taken}, which is driver {owners[taken]}'s"
                LOG.error("Driver %s: %s", name, errors[name])
                continue
            owners |= dict.fromkeys(claims, name)
            accepted[name] = found
        self._known |= accepted
        return Findings(devices=accepted, errors=errors)


def _checked(found: Iterable[base.Device]) -> tuple[base.Device, ...]:
    devices = tuple(found)
    for device in devices:
        if not isinstance(device, base.Device):
            raise TypeError(f"discover() returned a {type(device).__name__}, not a Device")
    (claim, times), *_ = Counter(_claims(devices)).most_common(1) or [("", 0)]
    if times > 1:
        raise ValueError(f"discover() returned {claim} twice")
    return devices


def _claims(devices: Iterable[base.Device]) -> list[str]:
    """What may exist only once on a host: control paths and names of deployables."""
    claims = []
    for device in devices:
        path = device.control_path
        claims.append(f"{path.cpid_type} {base.canonical_json(dict(path.cpid_info))}")
        claims += [f"deployable {deployable.name}" for deployable in device.deployables]
    return claims
