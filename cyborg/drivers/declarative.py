# SPDX-License-Identifier: Apache-2.0
"""The layer below the drivers of PCI devices: a driver declares what its devices are.

The layer chooses the functions, keeps what the host uses, leaves to other drivers what they match
more exactly, reads the facts, and names everything. A driver adds hooks for what only its vendor
has.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from oslo_config import cfg

from cyborg.drivers import base, device_spec, facts, pci, pci_devices, pci_facts, pci_health

LOG = logging.getLogger(__name__)

_FIELDS = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class_code")
_ids: Callable[[pci.Function], tuple[str, ...]] = operator.attrgetter(*_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Globs over the ids and the class of a function: lower-case hexadecimal digits."""

    vendor: str = "*"
    device: str = "*"
    subsystem_vendor: str = "*"
    subsystem_device: str = "*"
    class_code: str = "*"

    def fits(self, function: pci.Function) -> bool:
        """Whether the function is meant."""
        for name, glob, is_literal in _terms(self):
            value = getattr(function, name)
            if value != glob and (is_literal or not fnmatch.fnmatchcase(value, glob)):
                return False
        return True

    @property
    def digits(self) -> int:
        """How many digits it fixes: of two matches the one that fixes more is more exact."""
        return sum(char in "0123456789abcdef" for name in _FIELDS for char in getattr(self, name))


@functools.cache
def _terms(match: Match) -> tuple[tuple[str, str, bool], ...]:
    """The fields that a match asks for: name, glob, and whether that has no wildcard."""
    globs = ((name, getattr(match, name)) for name in _FIELDS)
    return tuple((name, glob, glob.isalnum()) for name, glob in globs if glob != "*")


class PciDriver:
    """A driver of PCI devices. Subclasses declare; everything else is done here.

    ``expose`` says what of a card is given out:

    * ``function``: the physical function, whole;
    * ``vfs``: its virtual functions while it has any, else the physical one; ``split`` says
      whether each virtual function is a deployable of its own;
    * ``slot``: the functions of a slot as one accelerator, with a handle for each;
    * ``each``: every function by itself, virtual ones too, but none beside its virtual ones.

    ``listed`` says that nothing is taken but what the operator's ``device_spec`` lists.
    """

    match: ClassVar[Sequence[Match]]
    type: ClassVar[str]
    resource_class: ClassVar[str]
    expose: ClassVar[Literal["function", "vfs", "slot", "each"]] = "function"
    split: ClassVar[bool] = True
    listed: ClassVar[bool] = False
    #: The option group whose ``device_spec`` narrows what the driver takes.
    group: ClassVar[str]
    #: Keys that only this driver's ``device_spec`` has, with the values that each may have.
    own_keys: ClassVar[Mapping[str, Set[str]]] = MappingProxyType({})

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.conf = conf
        texts = conf[self.group].device_spec
        self._specs = device_spec.parse(texts, f"[{self.group}] device_spec", self.own_keys)
        self._health = pci_health.Health(conf)
        vendors = {match.vendor for match in self.match}
        #: The vendors whose functions are looked at; None for all.
        self._vendors = vendors if all(map(str.isalnum, vendors)) else None
        self._said: set[tuple[str, str]] = set()
        self._claimed: tuple[pci.Snapshot, Mapping[str, int]] | None = None
        self._digits: dict[tuple[str, ...], int | None] = {}
        self._known_facts: dict[tuple[str, ...], dict[str, str | int]] = {}

    # Hooks.

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterable[str]:
        """Traits of the deployable in which the function is given out."""
        del function, functions
        return ()

    def attributes(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> Mapping[str, str | int | None]:
        """Facts that only this kind of device has; None where the kernel does not tell."""
        del function, functions
        return {}

    def refine(
        self, device: base.Device, function: pci.Function, functions: pci.Snapshot
    ) -> base.Device:
        """The device that the declaration made, changed as the driver likes."""
        del function, functions
        return device

    def resource(self, function: pci.Function) -> str:
        """The resource class as which the function is given out."""
        del function
        return self.resource_class

    def handle(self, function: pci.Function, functions: pci.Snapshot) -> base.AttachHandle:
        """By what the function is given to a guest."""
        del functions
        return pci_devices.handle_of(function)

    def groups(
        self, function: pci.Function, offered: Sequence[pci.Function], functions: pci.Snapshot
    ) -> Sequence[Sequence[pci.Function]]:
        """Which functions make a deployable together; the first of them names it."""
        del function, functions
        return [[each] for each in offered] if self.split else [offered]

    def divided(
        self, function: pci.Function, functions: pci.Snapshot, host: base.Host
    ) -> Sequence[base.Device] | None:
        """What is reported instead where a card is divided in its vendor's own way, or None."""
        del function, functions, host
        return None

    def ailment(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """What is wrong with a device that only its vendor's files tell."""
        del function, functions
        return None

    # Abilities.

    def claims(self, functions: pci.Snapshot) -> Mapping[str, int]:
        """The functions it would report, each with how exactly it is meant."""
        if self.listed and not self._specs:
            return {}
        # Another thread may ask of another walk meanwhile: one that hung returns late.
        claimed = self._claimed
        if claimed is None or claimed[0] is not functions:
            claimed = self._claimed = functions, self._claims(functions)
        return claimed[1]

    def _claims(self, functions: pci.Snapshot) -> dict[str, int]:
        claimed = {}
        candidates: Iterable[pci.Function] = functions.values()
        if self._vendors is not None:
            candidates = itertools.chain.from_iterable(map(functions.of_vendor, self._vendors))
        for function in candidates:
            exactness = self._exactness(function, functions)
            if exactness:
                claimed[function.address] = exactness
        # A card is one driver's with all its virtual functions, unless another means those more.
        for address in list(claimed) if self.expose != "each" else ():
            for vf in functions[address].vfs:
                spec = device_spec.first_match(self._specs, functions[vf], functions)
                if spec is None or not spec.exclude:
                    claimed[vf] = max(claimed.get(vf, 0), claimed[address])
        return claimed

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        """Every device of this kind that may be given out."""
        if self.listed and not self._specs:
            return
        functions = host.pci
        mine = self.claims(functions).keys() - host.foreign
        done: set[str] = set()
        for address in sorted(mine):
            function = functions[address]
            if address in done or (function.pf is not None and self.expose != "each"):
                continue
            try:
                yield from self._found(function, functions, mine, host, done)
            except pci.Vanished as exc:
                LOG.info("%s: it is left out of this pass", exc)

    def health(self, device: base.Device, host: base.Host) -> str | None:
        """What is wrong with a device that was found, in the same words while it stays so."""
        return self._health.of(device, host.pci, self.ailment)

    def own(self, function: pci.Function, functions: pci.Snapshot) -> Mapping[str, str]:
        """What the operator's list says of a function by ``own_keys``."""
        spec = device_spec.first_match(self._specs, function, functions)
        return spec.own if spec is not None else {}

    # What is given out.

    def _found(
        self,
        function: pci.Function,
        functions: pci.Snapshot,
        mine: Set[str],
        host: base.Host,
        done: set[str],
    ) -> Iterator[base.Device]:
        """The devices of one card. ``done`` are functions that are in a device already."""
        divided = self.divided(function, functions, host)
        if divided is not None:
            yield from divided
            return
        given = self._given(function, functions, mine)
        done.update(each.address for each in given)
        offered = self._offered(given, functions, mine, host.foreign)
        device = self._device(host.name, function, offered, functions) if offered else None
        if device is not None:
            yield self.refine(device, function, functions)

    def _exactness(self, function: pci.Function, functions: pci.Snapshot) -> int:
        ids = _ids(function)
        if ids not in self._digits:
            fitting = [match.digits for match in self.match if match.fits(function)]
            self._digits[ids] = max(fitting, default=None)
        digits = self._digits[ids]
        if digits is None:
            return 0
        spec = device_spec.first_match(self._specs, function, functions)
        if spec is not None:
            return 0 if spec.exclude else max(1, digits + spec.digits)
        only_excludes = all(each.exclude for each in self._specs)
        return digits if only_excludes and not self.listed else 0

    def _given(
        self, function: pci.Function, functions: pci.Snapshot, mine: Set[str]
    ) -> list[pci.Function]:
        if self.expose == "vfs" and function.vfs:
            return [functions[vf] for vf in function.vfs if vf in mine]
        if self.expose == "slot":
            slot = function.address.rpartition(".")[0]
            return [
                each
                for each in functions.values()
                if each.address in mine
                and each.pf is None
                and each.address.rpartition(".")[0] == slot
            ]
        return [function]

    def _offered(
        self,
        given: Sequence[pci.Function],
        functions: pci.Snapshot,
        mine: Set[str],
        foreign: Set[str],
    ) -> list[pci.Function]:
        """Those that the host can do without."""
        offered = []
        for each in given:
            reason = (
                pci.reason_to_keep(each, functions)
                or self._excluded_part(each, functions)
                or reason_to_keep_whole(each, functions, foreign)
            )
            if self.expose == "each" and any(vf in mine for vf in each.vfs):
                reason = reason or "its virtual functions are offered instead"
            if reason is None:
                offered.append(each)
            else:
                self.say(each, reason)
        # The functions of a slot are given together or not at all.
        return [] if self.expose == "slot" and len(offered) < len(given) else offered

    def _excluded_part(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """Why a card cannot be given whole because of the operator's list, or None."""
        for vf in function.vfs if self._specs else ():
            spec = device_spec.first_match(self._specs, functions[vf], functions)
            if spec is not None and spec.exclude:
                return f"its virtual function {vf} stays with the host"
        return None

    def _device(
        self,
        host: str,
        function: pci.Function,
        offered: Sequence[pci.Function],
        functions: pci.Snapshot,
    ) -> base.Device | None:
        place = function.address
        groups = self.groups(function, offered, functions)
        if self.expose == "slot":
            # The name stays when one of the functions is lost.
            place, groups = f"{place.rpartition('.')[0]}.0", [offered]
        deployables = []
        for members in groups:
            name = place if self.expose == "slot" else members[0].address
            try:
                deployables.append(self._deployable(f"{host}_{name}", members, functions))
            except pci.Vanished as exc:
                LOG.info("%s: it is left out of this pass", exc)
        if not deployables:
            return None
        spec = device_spec.first_match(self._specs, function, functions)
        kind = (spec.type if spec else None) or self.type
        return pci_devices.device_of(function, functions, kind, tuple(deployables), place=place)

    def _deployable(
        self, name: str, members: Sequence[pci.Function], functions: pci.Snapshot
    ) -> base.Deployable:
        """The functions as a deployable with a handle each."""
        function = members[0]
        attributes = self._attributes(function, functions)
        spec = device_spec.first_match(self._specs, function, functions)
        traits = [
            *self.traits(function, functions),
            *(spec.traits if spec else ()),
            *facts.traits_of(attributes),
        ]
        return base.Deployable(
            name=name,
            resource_class=(spec.resource_class if spec else None) or self.resource(function),
            num_accelerators=1 if self.expose == "slot" else len(members),
            attach_handles=tuple(self.handle(each, functions) for each in members),
            traits=tuple(dict.fromkeys(facts.trait(trait) for trait in traits)),
            attributes=attributes,
        )

    def _attributes(self, function: pci.Function, functions: pci.Snapshot) -> dict[str, str | int]:
        """The facts. What only the host's driver tells is remembered while a guest has the card."""
        own = {
            key: value
            for key, value in self.attributes(function, functions).items()
            if value is not None and value != ""
        }
        present = {**pci_facts.attributes(function, functions), **own}
        key = (function.address, *_ids(function))
        known = self._known_facts.get(key, {}) if is_with_guests(function) else {}
        self._known_facts[key] = {**known, **present}
        return self._known_facts[key]

    def say(self, function: pci.Function, reason: str) -> None:
        """Log once what will be so at every pass."""
        if (function.address, reason) not in self._said:
            self._said.add((function.address, reason))
            LOG.info("PCI device %s is not offered: %s", function.address, reason)


def reason_to_keep_whole(
    function: pci.Function, functions: pci.Snapshot, foreign: Set[str]
) -> str | None:
    """Why a function cannot be given whole because of its parts, or None.

    The guest that gets it takes them from whoever has them.
    """
    divided = pci_facts.division(function, functions)
    if divided is not None:
        return f"it is divided: {divided}"
    for vf in function.vfs:
        if vf in foreign:
            return f"its virtual function {vf} is another driver's"
        if is_with_guests(functions[vf]):
            return f"its virtual function {vf} is kept for a guest"
        reason = pci.reason_to_keep(functions[vf], functions)
        reason = reason or pci_facts.division(functions[vf], functions, of_card=True)
        if reason is not None:
            return f"its virtual function {vf} is in use: {reason}"
    return None


def is_with_guests(function: pci.Function) -> bool:
    """Whether the function is bound to the driver that gives functions to guests."""
    return function.driver is not None and "vfio" in function.driver
