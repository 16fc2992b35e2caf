# SPDX-License-Identifier: Apache-2.0
"""Which driver may report which device: PCI functions before a pass, all else after it.

Before a pass each PCI function goes to the driver that matches it most exactly. After a pass
nothing that may exist once on a host is accepted from two drivers: control paths, names of
deployables, and PCI functions with their virtual functions.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from cyborg.agent import background_calls
from cyborg.agent.background_calls import BackgroundCall
from cyborg.drivers import base, function_owners, pci
from cyborg.drivers.function_owners import Exactness

LOG = logging.getLogger(__name__)

#: What a driver found in a pass: its devices.
Devices = tuple[base.Device, ...]


class UniqueName(NamedTuple):
    """A thing that may exist only once on a host: as people read it, and what else marks it."""

    shown: str
    exact: str = ""


#: Devices, each with its keys.
_Keyed = Sequence[tuple[base.Device, Set[UniqueName]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The claims of drivers, the calls that have not ended in time, and why others failed."""

    exactness: Mapping[str, Exactness]
    hanging: Mapping[str, BackgroundCall[Exactness]]
    errors: Mapping[str, str]


def ask(
    drivers: Mapping[str, base.Matching], functions: pci.Snapshot, timeout: float
) -> Answers:
    """Ask each driver what it matches, and wait at most ``timeout`` seconds for them."""
    calls = {
        name: functools.partial(function_owners.of, driver, functions)
        for name, driver in drivers.items()
    }
    found: dict[str, Exactness] = {}
    hanging: dict[str, BackgroundCall[Exactness]] = {}
    errors: dict[str, str] = {}
    for name, call in background_calls.call_all("claims", calls, timeout).items():
        if not call.done(0):
            LOG.error("Driver %s does not say in time which PCI functions it claims", name)
            hanging[name] = call
        elif call.value is None:
            errors[name] = call.error or ""
        else:
            found[name] = call.value
    return Answers(exactness=found, hanging=hanging, errors=errors)


class Ownership:
    """Accepts what drivers found in a pass. Remembers the devices that it accepted last."""

    def __init__(self, drivers: Iterable[str]) -> None:
        self._known: dict[str, Devices] = dict.fromkeys(drivers, ())
        #: The sentence about each driver that lost some in the last pass: a log says it once.
        self._told: Mapping[str, str] = {}

    def accept(
        self,
        found: Mapping[str, Devices],
        errors: dict[str, str],
        functions: Mapping[str, pci.Function],
    ) -> dict[str, Devices]:
        """The devices that may be reported. A driver that loses some gets a sentence in ``errors``.

        Drivers that are not in ``found`` keep what was accepted before.
        """
        keyed = {name: tuple(with_keys(each, functions)) for name, each in found.items()}
        absent = (each for name, each in self._known.items() if name not in found)
        kept = [tuple(with_keys(each, functions)) for each in absent]
        accepted, lost = dict(found), dict[str, str]()
        if _repeated(itertools.chain(*keyed.values(), *kept)) is not None:
            accepted = self._arbitrate(keyed, lost, functions)
        for name, sentence in lost.items():
            if self._told.get(name) != sentence:
                LOG.error("Driver %s: %s", name, sentence)
        errors |= lost
        self._told = lost
        self._known |= accepted
        return accepted

    def _arbitrate(
        self,
        found: Mapping[str, _Keyed],
        lost: dict[str, str],
        functions: Mapping[str, pci.Function],
    ) -> dict[str, Devices]:
        """Leave out devices that belong to another driver, wholly or in part.

        What a driver has reported before belongs to it as long as it reports it or cannot answer.
        What is new belongs to the first driver in the order of ``enabled_drivers``. A device that
        was reported before stays as it was if only its new parts belong to another driver.
        """
        before = {name: tuple(with_keys(each, functions)) for name, each in self._known.items()}
        owners: dict[UniqueName, str] = {}
        for name, reported in before.items():
            known = _all_keys(reported)
            # An answer with anything twice may be rejected, and then everything is kept.
            if name in found and _repeated(found[name]) is None:
                known &= _all_keys(found[name])
            owners |= dict.fromkeys(known, name)
        accepted = {}
        for name, devices in found.items():
            own, taken = _own_devices(name, devices, before[name], owners)
            if taken is not None:
                lost[name] = f"Driver {owners[taken]} reports {taken.shown} already"
            twice = _repeated(own)
            if twice is not None:
                lost[name] = f"It reports {twice.shown} twice"
            else:
                owners |= dict.fromkeys(_all_keys(own), name)
                accepted[name] = tuple(device for device, _keys in own)
        return accepted


def with_keys(
    devices: Iterable[base.Device], functions: Mapping[str, pci.Function]
) -> Iterator[tuple[base.Device, set[UniqueName]]]:
    """Each device with its keys.

    They are its control path, the names of its deployables, and its PCI functions. A physical
    function includes its virtual ones.
    """
    for device in devices:
        path = device.control_path
        keys = {UniqueName(path.place, str(path))}
        keys.update(UniqueName(f"deployable {each.name}") for each in device.deployables)
        for handle in device.handles:
            keys.update(_functions_of(handle, functions))
        yield device, keys


def given_twice(device: base.Device) -> str | None:
    """A PCI function for which a device has two handles, or None."""
    given = Counter(_address(each) for each in device.handles if each.attach_type == "PCI")
    return next((each for each, times in given.items() if each is not None and times > 1), None)


def _functions_of(
    handle: base.AttachHandle, functions: Mapping[str, pci.Function]
) -> Iterator[UniqueName]:
    address = _address(handle) if handle.attach_type != "TEST_PCI" else None
    if address is None:
        return
    yield UniqueName(f"PCI function {address}")
    if handle.attach_type == "PCI" and address in functions:
        yield from (UniqueName(f"PCI function {vf}") for vf in functions[address].vfs)


def _address(handle: base.AttachHandle) -> str | None:
    """The PCI function of a handle, for a mediated device its parent, or None if it has none."""
    try:
        return pci.join(handle.attach_info).lower()
    except KeyError:
        return None


def _own_devices(
    name: str, found: _Keyed, before: _Keyed, owners: Mapping[UniqueName, str]
) -> tuple[_Keyed, UniqueName | None]:
    """The devices that a driver may report, and the first key that belongs to another."""
    own, first = [], None
    known = {str(device.control_path): (device, keys) for device, keys in before}
    for device, keys in found:
        taken = _foreign_key(name, keys, owners)
        if taken is None:
            own.append((device, keys))
            continue
        first = first or taken
        old = known.get(str(device.control_path))
        if old is not None and _foreign_key(name, old[1], owners) is None:
            own.append(old)
    return own, first


def _foreign_key(
    name: str, keys: Set[UniqueName], owners: Mapping[UniqueName, str]
) -> UniqueName | None:
    return next((key for key in sorted(keys) if owners.get(key, name) != name), None)


def _all_keys(devices: _Keyed) -> set[UniqueName]:
    return set[UniqueName]().union(*(keys for _device, keys in devices))


def _repeated(devices: Iterable[tuple[base.Device, Set[UniqueName]]]) -> UniqueName | None:
    """A key that more than one device has, or None."""
    counted = Counter(itertools.chain.from_iterable(keys for _device, keys in devices))
    return min((key for key, times in counted.items() if times > 1), default=None)
