# SPDX-License-Identifier: Apache-2.0
"""SR-IOV virtual functions: their number and drivers, as ``[agent] sriov_spec`` says.

Only functions that the option matches are changed. :func:`plan` compares it with a walk and changes
nothing; :class:`Configurator` carries the plan out before a discovery pass.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oslo_config import cfg

from cyborg.agent.background_calls import BackgroundCall
from cyborg.drivers import pci, privileged
from cyborg.drivers.pci import device_spec

LOG = logging.getLogger(__name__)

#: The name under which a report has the errors of this module, beside those of drivers.
NAME = "sriov"
_OPTION = "[agent] sriov_spec"
_MATCH = frozenset({"vendor_id", "product_id", "address", "devname"})
#: Virtual functions are created in one round and bound in the next.
_ROUNDS = 2
#: The most seconds before a failed change is tried again. It is first tried at the next pass, as a
#: driver may just be starting. Then it pauses: a change can cause events, which cause passes.
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One object of the option: the physical functions, the number of virtual ones, their driver.

    ``count`` is None for as many as possible. With a ``driver`` no other driver of the host takes
    new virtual functions, and that one gets those that have none.
    """

    spec: device_spec.Spec
    count: int | None
    driver: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SriovStep:
    """One change of a function: the number of its virtual functions, or else its driver."""

    address: str
    count: int | None = None
    driver: str | None = None

    def __str__(self) -> str:
        if self.count is not None:
            return f"{self.address} gets {self.count} virtual functions"
        return f"{self.address} gets driver {self.driver}"

    def run(self) -> None:
        """Make the change.

        :raises OSError: the kernel refuses it
        """
        if self.count is None:
            privileged.bind_driver(self.address, self.driver or "")
            return
        if self.driver is not None:
            privileged.set_drivers_autoprobe(self.address, on=False)
        privileged.set_numvfs(self.address, self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class SriovPlan:
    """The changes to make; by address, why a function is left alone, and what cannot be done."""

    steps: tuple[SriovStep, ...]
    kept: Mapping[str, str]
    problems: Mapping[str, str]


def parse(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Read every value of the option; each is a JSON object or a list of them.

    :raises ValueError: a value is wrong; the message says where and how
    """
    return device_spec.parse_objects(texts, _OPTION, _rule)


def plan(rules: Iterable[Rule], functions: pci.Snapshot) -> SriovPlan:
    """The changes that the rules need. The first rule that matches a function counts."""
    steps: list[SriovStep] = []
    kept: dict[str, str] = {}
    problems: dict[str, str] = {}
    for function, rule in _ruled(rules, functions):
        total = function.sriov_totalvfs
        count = total if rule.count is None else rule.count
        try:
            # The card stays with the host, so what only its guests must not have does not matter.
            reason = pci.reason_to_keep(function, functions, far=True)
            reason = None if reason == pci.BOOTED_WITH else reason
        except OSError as exc:
            problems[function.address] = f"it cannot be told whether the host uses it: {exc}"
            continue
        if reason is not None:
            kept[function.address] = reason
        elif count > total:
            problems[function.address] = f"it can have {total} virtual functions, not {count}"
        elif len(function.vfs) != count:
            steps.append(SriovStep(address=function.address, count=count, driver=rule.driver))
        elif rule.driver is not None:
            unbound = (
                vf for vf in function.vfs if vf in functions and functions[vf].driver is None
            )
            steps += [SriovStep(address=vf, driver=rule.driver) for vf in unbound]
    return SriovPlan(steps=tuple(steps), kept=kept, problems=problems)


def _ruled(
    rules: Iterable[Rule], functions: pci.Snapshot
) -> Iterator[tuple[pci.Function, Rule]]:
    """The functions that can have virtual ones, each with its rule."""
    for function in functions.values():
        for rule in rules if function.sriov_totalvfs else ():
            if rule.spec.matches(function, functions):
                yield function, rule
                break


def unmatched(rules: Sequence[Rule], functions: pci.Snapshot) -> list[str]:
    """A sentence for each object of the option that selects nothing."""
    used = {id(rule) for _function, rule in _ruled(rules, functions)}
    sentence = f"Object {{}} of {_OPTION} matches no function that can have virtual ones"
    return device_spec.selecting_nothing(rules, used, sentence)


def preview(conf: cfg.ConfigOpts) -> list[str]:
    """A sentence for each change that would be made on this host, and each that would not."""
    try:
        rules = parse(conf.agent.sriov_spec)
        todo = plan(rules, pci.scan()) if rules else None
    except (OSError, ValueError) as exc:
        return [str(exc)]
    if todo is None:
        return []
    return [
        *unmatched(rules, pci.scan()),
        *(str(step) for step in todo.steps),
        *(f"{address} is left alone: {reason}" for address, reason in todo.kept.items()),
        *(f"{address} is left alone: {reason}" for address, reason in todo.problems.items()),
    ]


def _rule(item: Any) -> Rule:
    problem = _problem(item)
    if problem is not None:
        raise ValueError(problem)
    match = {key: value for key, value in item.items() if key in _MATCH}
    spec = device_spec.spec(match, _OPTION)
    count = item["numvfs"]
    return Rule(spec=spec, count=None if count == "all" else count, driver=item.get("vf_driver"))


def _problem(item: Any) -> str | None:
    """The fault of an object, apart from the keys that match functions, or None."""
    if not isinstance(item, dict) or not item.keys() & _MATCH:
        return f"it must be an object with one of {sorted(_MATCH)} at least"
    if unknown := item.keys() - _MATCH - {"numvfs", "vf_driver"}:
        return f"it has {sorted(unknown)}, which mean nothing here"
    count = item.get("numvfs")
    if count != "all" and (type(count) is not int or count < 0):
        return 'numvfs must be a number or "all"'
    if not isinstance(item.get("vf_driver", ""), str):
        return "vf_driver must be the name of a driver"
    return None


class Configurator:
    """Changes the host's virtual functions to what the option says, before each pass.

    It changes none while somebody else holds the lock ``layout_changes``.
    """

    def __init__(self, conf: cfg.ConfigOpts, layout_changes: threading.Lock) -> None:
        self._layout_changes = layout_changes
        self._timeout = conf.agent.driver_timeout
        self._option_error: str | None = None
        self._rules: tuple[Rule, ...] = ()
        try:
            self._rules = parse(conf.agent.sriov_spec)
        except ValueError as exc:
            LOG.error("%s", exc)  # noqa: TRY400 - the message says it all
            self._option_error = str(exc)
        self._call: BackgroundCall[dict[str, str]] | None = None
        self._problems: dict[str, str] = {}
        #: By address how often a change failed, and when it may be tried again.
        self._failures: dict[str, tuple[int, float]] = {}
        self._logged: frozenset[str] = frozenset()

    def apply(self) -> dict[str, str]:
        """Make the changes that can be made; return what is wrong, as errors of the report.

        If a change hangs in the kernel, no other is made until it has ended.
        """
        if self._option_error is not None:
            return {NAME: self._option_error}
        if not self._rules:
            return {}
        if self._call is None:
            self._call = BackgroundCall("sriov", self._apply).start()
            finished = self._call.done(self._timeout)
        else:
            finished = self._call.done(0)
        if not finished:
            return {NAME: f"A change does not end within {self._timeout:g} seconds"}
        value, error = self._call.value, self._call.error
        self._call = None
        self._problems = value if value is not None else {"the host": str(error)}
        sentences = [f"{address}: {text}" for address, text in sorted(self._problems.items())]
        return {NAME: "; ".join(sentences)} if sentences else {}

    def unmatched(self, functions: pci.Snapshot | None) -> str:
        """The objects of the option that select nothing; empty if each selects something."""
        return "; ".join(unmatched(self._rules, functions)) if functions is not None else ""

    def _apply(self) -> dict[str, str]:
        if not self._layout_changes.acquire(blocking=False):
            # A card may lack its virtual functions for a moment. Another pass follows the change.
            return self._problems
        try:
            return self._settle()
        finally:
            self._layout_changes.release()

    def _settle(self) -> dict[str, str]:
        now = time.monotonic()
        # A change that failed a short while ago is not tried again yet.
        recent = {address for address, (_, when) in self._failures.items() if when > now}
        failed = {address: text for address, text in self._problems.items() if address in recent}
        for _ in range(_ROUNDS):
            todo = plan(self._rules, pci.scan())
            steps = [step for step in todo.steps if step.address not in failed]
            for step in steps:
                error = self._try(step)
                if error is not None:
                    failed[step.address] = error
            if not steps:
                break
        for address, reason in todo.kept.items():
            if address not in self._logged:
                LOG.info("PCI device %s keeps the virtual functions it has: %s", address, reason)
        self._logged = frozenset(todo.kept)
        return {**failed, **todo.problems}

    def _try(self, step: SriovStep) -> str | None:
        """Make a change; return what is wrong, or None."""
        try:
            step.run()
        except (OSError, ValueError) as exc:
            LOG.warning("Not done: %s: %s", step, exc)
            times, _ = self._failures.get(step.address, (0, 0.0))
            pause = min(2.0**times - 1, _LONGEST_PAUSE)
            self._failures[step.address] = (times + 1, time.monotonic() + pause)
            return str(exc)
        LOG.info("%s", step)
        self._failures.pop(step.address, None)
        return None
