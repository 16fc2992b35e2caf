# SPDX-License-Identifier: Apache-2.0
"""The base class of drivers of PCI devices: a subclass declares what its devices are.

The class selects the functions, leaves those that the host uses and those that another driver
matches more exactly, reads the facts, and names the deployables. A subclass adds hooks for what
only its vendor has.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar, Literal

from oslo_config import cfg

from cyborg.conf import cleaning as cleaning_options
from cyborg.drivers import base, kept_facts, registry, trait_names
from cyborg.drivers.pci import (
    cleaning,
    device_spec,
    devices,
    facts,
    groups,
    health,
    known_facts,
    readings,
    shares,
    withholding,
)
from cyborg.drivers.pci.match import Match, Matches
from cyborg.drivers.pci.snapshot import Facts, Function, Snapshot, Vanished, join

LOG = logging.getLogger(__name__)

#: What an operator can do about a function that is not offered.
_LOOK_AT_THE_CARD = "look at the card and its driver"
_LIST_FOR_PCI_DRIVER = "[pci] device_spec, for the driver pci_driver"


class PciDriver:
    """A driver of PCI devices.

    ``expose`` says which functions of a card are given out:

    * ``function``: the physical function, whole;
    * ``vfs``: its virtual functions if it has any, else the physical one; ``split`` says whether
      each virtual function is a deployable of its own;
    * ``slot``: all functions of a slot as one accelerator, with a handle for each;
    * ``each``: every function by itself, except physical ones that have virtual functions.

    ``listed`` says that only devices in the operator's ``device_spec`` are taken.
    """

    driver_api: ClassVar[int] = 1
    match: ClassVar[Sequence[Match]]
    type: ClassVar[str]
    resource_class: ClassVar[str]
    #: That of a virtual function, if it is another one.
    part_class: ClassVar[str | None] = None
    #: Traits, with fields of the ``function`` and of its ``card`` in braces.
    own_traits: ClassVar[Sequence[str]] = ()
    expose: ClassVar[Literal["function", "vfs", "slot", "each"]] = "function"
    split: ClassVar[bool] = True
    listed: ClassVar[bool] = False
    #: The option group whose ``device_spec`` limits what the driver takes.
    group: ClassVar[str]
    #: Why a function that the operator lists may be none for this driver, and what to do.
    unfit: ClassVar[tuple[str, str]] = ("the driver does not know it", _LIST_FOR_PCI_DRIVER)
    #: Further keys of this driver's ``device_spec``, each with its permitted values; None: any.
    own_keys: ClassVar[Mapping[str, device_spec.Values]] = MappingProxyType({})

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.conf = conf
        texts = conf[self.group].device_spec
        self._specs = device_spec.parse(texts, f"[{self.group}] device_spec", self.own_keys)
        self.kept = kept_facts.KeptFacts(conf, self.group)
        self._health = health.Health(conf, self.kept)
        self._matches = Matches(self.match)
        self._log_once = functools.cache(LOG.info)
        self._problems: list[str] = []
        self._refusals: dict[str, base.Refusal] = {}
        self._groups = groups.Groups()
        #: What ``[cleaning]`` says of each resource class. No option of it changes while we run.
        self._cleaning = functools.cache(self._cleaning_of)
        self._facts = known_facts.KnownFacts(self.kept)

    # Hooks.

    def traits(self, function: Function, functions: Snapshot) -> Iterable[str]:
        """Traits of the function's deployable."""
        card = functions.get(function.pf or function.address, function)
        return [each.format(function=function, card=card) for each in self.own_traits]

    def attributes(self, function: Function, functions: Snapshot) -> Facts:
        """Facts that only this kind of device has."""
        return {}

    def refine(
        self, device: base.Device, function: Function, functions: Snapshot
    ) -> base.Device:
        """The finished device, for changes that no other hook can make."""
        return device

    def resource(self, function: Function) -> str:
        """The resource class of the function."""
        of_part = self.part_class if function.pf is not None else None
        return of_part or self.resource_class

    def handle(self, function: Function, functions: Snapshot) -> base.AttachHandle:
        """The attach handle of the function."""
        return devices.handle_of(function)

    def groups(
        self, function: Function, offered: Sequence[Function], functions: Snapshot
    ) -> Sequence[Sequence[Function]]:
        """The functions of each deployable; the first of them names it."""
        return [[each] for each in offered] if self.split else [offered]

    def divided(
        self, function: Function, functions: Snapshot, host: base.Host
    ) -> Sequence[base.Device] | None:
        """The devices to report instead if a card is divided in its vendor's own way, or None."""
        return None

    def why_unhealthy(self, function: Function, functions: Snapshot) -> str | None:
        """Why a device is unhealthy, from files that only its vendor's cards have, or None."""
        return None

    def sensors(self, function: Function, functions: Snapshot) -> Mapping[str, float]:
        """The readings of a function's sensors, by the names of the agent's metrics."""
        return readings.hwmon(function)

    def why_kept(self, function: Function, functions: Snapshot) -> base.Refusal | None:
        """Why a function stays with the host, by what only its kind shows, or None."""
        return None

    # Abilities.

    def exactness(self, functions: Snapshot) -> Mapping[str, int]:
        """The functions it would report, each with how exactly it matches."""
        if self.listed and not self._specs:
            return {}
        return functions.made(self._exactnesses)

    def _exactnesses(self, functions: Snapshot) -> dict[str, int]:
        matched = {}
        for address, digits in self._of_its_kind(functions).items():
            exactness = self._exactness(functions[address], digits, functions)
            if exactness:
                matched[address] = exactness
        # A card with all its virtual functions has one driver, unless another matches those better.
        for address in list(matched) if self.expose != "each" else ():
            for vf in functions[address].vfs:
                spec = self._own_spec(functions[vf], functions)
                if spec is None or not spec.exclude:
                    matched[vf] = max(matched.get(vf, 0), matched[address])
        fitting = [each for each in matched if self._fits(functions[each], functions)]
        return {address: matched[address] for address in fitting}

    def _fits(self, function: Function, functions: Snapshot) -> bool:
        """True if a function that matches is of this kind, by what no match can say."""
        return True

    def _of_its_kind(self, functions: Snapshot) -> dict[str, int]:
        return self._matches.of(functions, parts=self.expose != "each")

    def _listed(self, functions: Snapshot) -> dict[str, device_spec.Spec]:
        """The objects of the operator's list, by the functions of its kind that they match."""
        found = {
            each: self._own_spec(functions[each], functions)
            for each in self._of_its_kind(functions)
        }
        return {address: spec for address, spec in found.items() if spec is not None}

    def named(self, functions: Snapshot) -> Set[str]:
        """The functions that objects of the operator's list match, and that are of its kind."""
        listed = functions.made(self._listed)
        return {address for address, each in listed.items() if not each.exclude}

    def unmatched(self, functions: Snapshot) -> Sequence[str]:
        """A sentence for each object of the operator's list that selects nothing."""
        matched, listed = self.exactness(functions), functions.made(self._listed)
        used = {id(each) for name, each in listed.items() if name in matched or each.exclude}
        return device_spec.unused(self._specs, used, functions, self.option, self.unfit[0])

    def entry(self, address: str, functions: Snapshot) -> str | None:
        """The object of the operator's list that selects a function or its card, or None."""
        spec = self.spec(functions[address], functions) if address in functions else None
        return f"object {self._specs.index(spec) + 1} of {self.option}" if spec else None

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        """Every device of this kind that can be given out."""
        self._problems = []
        self._refusals = {}
        self._groups = groups.Groups()
        if self.listed and not self._specs:
            self._problems.append(f"{self.option} is not set, so the driver reports nothing")
            return
        functions = host.pci
        mine = self._mine(host)
        done: set[str] = set()
        for address in sorted({self._card(functions[each]) for each in mine}):
            if address in done or address not in functions:
                continue
            function = functions[address]
            try:
                found = tuple(self._found(function, mine, host, done))
            except Vanished as exc:
                LOG.info("%s: it is left out of this pass", exc)
            except Exception as exc:  # noqa: BLE001 - no card must take the others along
                functions.give_up(function)
                problem = f"PCI function {address}: {type(exc).__name__}: {exc}"
                self._problems.append(problem)
                self.refuse(function, problem, _LOOK_AT_THE_CARD)
            else:
                yield from found

    def problems(self) -> Sequence[str]:
        """The faults of cards that were left out of the last pass, and of the kept facts."""
        return [*filter(None, [self.kept.problem]), *self._problems]

    def health(self, device: base.Device, host: base.Host) -> str | None:
        """Why a device that was found is unhealthy, in the same words as long as that stays so."""
        unhealthy = self._health.why_unhealthy(device, host.pci, self.why_unhealthy)
        return unhealthy or cleaning.why_unclean(self._cleaning, device, host.pci)

    def readings(self, device: base.Device, host: base.Host) -> Mapping[str, float]:
        """The readings of a device's sensors, if no guest has it."""
        function = host.pci.get(join(device.control_path.cpid_info))
        if function is None or function.has_guest_driver:
            return {}
        return self.sensors(function, host.pci)

    def _cleaning_of(self, resource_class: str) -> str:
        names = registry.names_of(type(self).__module__, type(self).__qualname__)
        return cleaning_options.policy(self.conf, resource_class, names)

    def clean(self, handle: base.HeldHandle) -> None:
        """Reset the handle's function, if it is one or a share of one.

        :raises RuntimeError: it is not on the bus, in use, or cannot be reset alone
        """
        if cleaning.is_function(handle):
            cleaning.reset(handle)

    def remember(self) -> None:
        """Write what must outlive the agent."""
        self.kept.save()

    def common_attributes(
        self, function: Function, functions: Snapshot
    ) -> dict[str, str | int]:
        """The facts that every kind of device has."""
        found = facts.attributes(function, functions)
        named = self._named_product(function, functions)
        return found if named is None else {**found, "product": named}

    def why_not_offered(self, function: Function, functions: Snapshot) -> base.Refusal | None:
        """The reason that kept it out of the last pass, or why the driver did not take it."""
        refused = self._last_refusal(function)
        if refused is not None or (self.listed and not self._specs):
            return refused
        # A card is listed with all of its virtual functions.
        is_told = function.pf is None or any(each.exclude for each in self._specs)
        card = functions.get(function.pf or function.address, function)
        kinds = (match.fits(each) for match in self.match for each in (function, card))
        if not is_told or not any(kinds):
            return None
        spec = self._own_spec(function, functions)
        if spec is not None and spec.exclude:
            return base.Refusal(reason=f"{self.option} excludes it", remedy=self.option)
        if spec is not None and function.address not in self.exactness(functions):
            reason, remedy = self.unfit
            return base.Refusal(reason=f"{self.option} lists it, and {reason}", remedy=remedy)
        if self._specs and spec is None and not self.listed and function.pf is None:
            return base.Refusal(reason=f"{self.option} does not list it", remedy=self.option)
        return None

    def _last_refusal(self, function: Function) -> base.Refusal | None:
        """The reason that kept it, or one of its virtual functions, out of the last pass."""
        for address in (function.address, *function.vfs):
            refused = self._refusals.get(address)
            if refused is not None:
                of = "" if address == function.address else f"of its virtual function {address}: "
                return replace(refused, reason=f"{of}{refused.reason}")
        return None

    def described(self, function: Function, functions: Snapshot) -> base.Device:
        """The function's device by its ids alone, with nothing that could be given out."""
        product = self._named_product(function, functions) or functions.product(function)
        kind = self.tags(function, functions).type or self.type
        return devices.device_of(function, kind, (), place=self._place(function), product=product)

    def spec(self, function: Function, functions: Snapshot) -> device_spec.Spec | None:
        """The object of the operator's list for a function, or for its card, or None."""
        if not self._specs:
            return None  # most hosts have no list, and each function is asked about often
        own = self._own_spec(function, functions)
        card = functions.get(function.pf or "")
        return own if own is not None or card is None else self._own_spec(card, functions)

    def tags(self, function: Function, functions: Snapshot) -> device_spec.Tags:
        """The values of the operator's list that a function, or its card, is reported with."""
        return self.spec(function, functions) or device_spec.NO_TAGS

    @property
    def option(self) -> str:
        """The name of the option with the operator's list."""
        return f"[{self.group}] device_spec"

    def own(self, function: Function, functions: Snapshot) -> Mapping[str, str]:
        """The operator's values of ``own_keys`` for a function."""
        spec = self.spec(function, functions)
        return spec.own if spec is not None else {}

    # What is given out.

    def _mine(self, host: base.Host) -> Set[str]:
        """The functions that are this driver's: a part of another's card if it is listed itself."""
        functions = host.pci
        mine = self.exactness(functions).keys() - host.foreign
        return {
            each
            for each in mine
            if self._card(functions[each]) in mine or self._own_spec(functions[each], functions)
        }

    def _card(self, function: Function) -> str:
        """The address of the function's device: of a part, that of its card."""
        return function.address if self.expose == "each" else function.pf or function.address

    def _own_spec(self, function: Function, functions: Snapshot) -> device_spec.Spec | None:
        """The object of the operator's list that matches the function itself, or None."""
        return functions.cached(self._first_match, function) if self._specs else None

    def _first_match(self, function: Function, functions: Snapshot) -> device_spec.Spec | None:
        return device_spec.first_match(self._specs, function, functions)

    def _found(
        self, function: Function, mine: Set[str], host: base.Host, done: set[str]
    ) -> Iterator[base.Device]:
        """The devices of one card. ``done`` collects functions that are in a device already."""
        functions = host.pci
        is_shared = shares.are_wanted(self.own(function, functions))
        divided = None if is_shared else self.divided(function, functions, host)
        if divided is not None:
            yield from divided
            return
        given = self._given(function, functions, mine)
        if not given:
            for vf in mine & set(function.vfs):
                reason = "it is a virtual function, and this driver offers whole cards"
                self.refuse(functions[vf], reason, _LIST_FOR_PCI_DRIVER)
        done.update(each.address for each in given)
        together = "card" if self.expose == "slot" else None
        offered = self._offered(given, mine, host, together)
        device = self._device(function, offered, host) if offered else None
        if device is not None:
            yield self.refine(device, function, functions)

    def _exactness(self, function: Function, digits: int, functions: Snapshot) -> int:
        """The exactness of the match, by the ids of its kind and by the operator's list."""
        is_part = function.pf is not None and self.expose != "each"
        spec = self._own_spec(function, functions)
        if spec is not None:
            return 0 if spec.exclude else max(1, digits + spec.digits)
        # A part that is not listed itself goes with its card.
        if is_part or self.listed:
            return 0
        return digits if all(each.exclude for each in self._specs) else 0

    def _given(
        self, function: Function, functions: Snapshot, mine: Set[str]
    ) -> list[Function]:
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
        return [function] if function.address in mine else []

    def _offered(
        self, given: Sequence[Function], mine: Set[str], host: base.Host, together: str | None
    ) -> list[Function]:
        """Those that can be given out, without those that must stay with the host.

        ``together`` says what they make up if a guest gets all of them, or none.
        """
        offered = []
        for each in given:
            members = given if together is not None else [each]
            if self.expose == "each" and not mine.isdisjoint(each.vfs):
                self.refuse(each, "its virtual functions are offered instead")
            elif withheld := self._withheld(each, members, host):
                self.refuse(each, withheld.reason, withheld.remedy)
            else:
                offered.append(each)
                if together is None:
                    self._groups.take(each)
        if together is not None and len(offered) < len(given):
            for each in offered:
                self.refuse(each, f"another function of its {together} is not offered")
            return []
        for each in offered:
            self._groups.take(each)
        return offered

    def _withheld(
        self, function: Function, members: Iterable[Function], host: base.Host
    ) -> base.Refusal | None:
        """Why a function that a guest gets with these stays with the host, or None."""
        functions, foreign = host.pci, host.foreign
        together = {each.address for each in members}
        spec = self._own_spec(function, functions)
        return (
            withholding.by_host(function, functions, spec, self.option)
            or self.why_kept(function, functions)
            or withholding.by_list(function, functions, self._specs, self.option)
            or withholding.by_parts(function, functions, foreign)
            or shares.why_not(self.own(function, functions), function, self.conf)
            or self._groups.why_not(function, together, functions, foreign)
        )

    def _device(
        self, function: Function, offered: Sequence[Function], host: base.Host
    ) -> base.Device | None:
        functions, place = host.pci, self._place(function)
        groups = self.groups(function, offered, functions)
        if self.expose == "slot":
            groups = [offered]
        deployables = []
        for members in groups:
            name = place if self.expose == "slot" else members[0].address
            try:
                deployables.append(self._deployable(f"{host.name}_{name}", members, functions))
            except Vanished as exc:
                LOG.info("%s: it is left out of this pass", exc)
        if not deployables:
            return None
        kind = self.tags(function, functions).type or self.type
        return devices.device_of(function, kind, tuple(deployables), place=place)

    def _place(self, function: Function) -> str:
        """The address of the function's device."""
        if self.expose != "slot":
            return function.address
        # It must stay the same if one of the functions is lost.
        return f"{function.address.rpartition('.')[0]}.0"

    def _deployable(
        self, name: str, members: Sequence[Function], functions: Snapshot
    ) -> base.Deployable:
        """The functions as a deployable with a handle each."""
        function = members[0]
        tags = self.tags(function, functions)
        deployable = base.Deployable(
            name=name,
            resource_class=tags.resource_class or self.resource(function),
            num_accelerators=1 if self.expose == "slot" else len(members),
            attach_handles=tuple(self.handle(each, functions) for each in members),
            traits=trait_names.legal_names((*self.traits(function, functions), *tags.traits)),
            attributes=self._attributes(function, functions),
        )
        deployable = shares.of(deployable, self.own(function, functions))
        return cleaning.arranged(self._cleaning, deployable, members, functions)

    def sliced(
        self,
        host: base.Host,
        function: Function,
        kind: str,
        handles: Sequence[base.AttachHandle],
        *,
        traits: Iterable[str] = (),
        layouts: Mapping[str, int] | None = None,
        layout: str | None = "",
    ) -> base.Device:
        """The device of a card whose slices, of that resource class, containers get.

        ``layouts`` are those that it can have, with the numbers of slices, and ``layout`` is the
        one that it has; None where nobody changes it.
        """
        functions = host.pci
        tags = self.tags(function, functions)
        named = (*self.traits(function, functions), *traits, *tags.traits)
        own = self._attributes(function, functions)
        # No slice has all of the card's memory.
        shown = {key: value for key, value in own.items() if key != "memory_mib"}
        possible = {f"{base.LAYOUT_PREFIX}{name}": str(n) for name, n in (layouts or {}).items()}
        part = base.Deployable(
            name=f"{host.name}_{function.address}",
            resource_class=kind,
            num_accelerators=len(handles),
            attach_handles=tuple(handles),
            traits=trait_names.legal_names(named),
            attributes=shown | possible,
            program_mode=base.LAYOUT if layouts is not None else None,
            function=layout if layouts is not None else None,
        )
        return devices.device_of(function, tags.type or self.type, (part,))

    def _attributes(self, function: Function, functions: Snapshot) -> dict[str, str | int]:
        """The facts. What cannot be read, as while a guest has the card, is kept."""
        own = self.attributes(function, functions)
        return self._facts.of(function, functions, own, self._named_product(function, functions))

    def _named_product(self, function: Function, functions: Snapshot) -> str | None:
        """The operator's name of the product, or None."""
        spec = self.spec(function, functions)
        return spec.product if spec is not None else None

    def refuse(self, function: Function, reason: str, remedy: str = "") -> None:
        """Keep why a function is not offered, and log it once, not at every pass."""
        self._refusals[function.address] = base.Refusal(reason=reason, remedy=remedy)
        self._log_once("PCI device %s is not offered: %s", function.address, reason)
