# SPDX-License-Identifier: Apache-2.0
"""Virtual functions as the operator wants them: how many each physical function has, and whose.

Only what ``[agent] sriov_spec`` names is ever touched. :func:`plan` compares it with a walk and
changes nothing; :class:`Keeper` carries the plan out before a discovery pass.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from oslo_config import cfg

from cyborg.agent.attempt import Attempt
from cyborg.drivers import device_spec, pci, privileged

LOG = logging.getLogger(__name__)

#: Under which name the report says what could not be done.
NAME = "sriov"
_OPTION = "[agent] sriov_spec"
_MATCH = frozenset({"vendor_id", "product_id", "address", "devname"})
#: Functions are made in one round and bound in the next.
_ROUNDS = 2
#: The most seconds before what failed is tried again. The first time that is at the next pass, as
#: a driver may just be starting; but an attempt can make events, and those make passes.
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One object of the option: which physical functions, how many virtual ones, and whose.

    ``count`` is None for as many as there can be. With a ``driver`` the host's own drivers are kept
    from the virtual functions, and that one gets those that have none.
    """

    spec: device_spec.Spec
    count: int | None
    driver: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change of a host: so many virtual functions, or else a driver, for a function."""

    address: str
    count: int | None = None
    driver: str | None = None

    def __str__(self) -> str:
        if self.count is not None:
            return f"{self.address} gets {self.count} virtual functions"
        return f"{self.address} gets driver {self.driver}"

    def run(self) -> None:
        """Make the change.

        :raises OSError: it is refused
        """
        if self.count is None:
            privileged.bind_driver(self.address, self.driver or "")
            return
        if self.driver is not None:
            privileged.set_drivers_autoprobe(self.address, on=False)
        privileged.set_numvfs(self.address, self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be changed, why a function is left to the host, and what cannot be, by address."""

    steps: tuple[Step, ...]
    kept: Mapping[str, str]
    problems: Mapping[str, str]


def parse(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Read every value of the option; each is a JSON object or a list of them.

    :raises ValueError: a value is wrong; the sentence says where and how
    """
    rules: list[Rule] = []
    for text in texts:
        try:
            value = json.loads(text)
        except ValueError as exc:
            raise ValueError(f"{_OPTION} {text!r} is not JSON: {exc}") from exc
        rules += [_rule(item) for item in (value if isinstance(value, list) else [value])]
    return tuple(rules)


def plan(rules: Iterable[Rule], functions: pci.Snapshot) -> Plan:
    """What has to change for the functions that rules name; the first that matches one counts."""
    steps: list[Step] = []
    kept: dict[str, str] = {}
    problems: dict[str, str] = {}
    for function in functions.values():
        total = function.sriov_totalvfs
        rule = next((rule for rule in rules if rule.spec.matches(function, functions)), None)
        if rule is None or not total:
            continue
        count = total if rule.count is None else rule.count
        reason = pci.reason_to_keep(function, functions)
        if reason is not None:
            kept[function.address] = reason
        elif count > total:
            problems[function.address] = f"it can have {total} virtual functions, not {count}"
        elif len(function.vfs) != count:
            steps.append(Step(address=function.address, count=count, driver=rule.driver))
        else:
            steps += _unbound(function, rule, functions)
    return Plan(steps=tuple(steps), kept=kept, problems=problems)


def preview(conf: cfg.ConfigOpts) -> list[str]:
    """A sentence for each change that would be made of this host, and for each that would not."""
    try:
        rules = parse(conf.agent.sriov_spec)
        todo = plan(rules, pci.scan()) if rules else None
    except (OSError, ValueError) as exc:
        return [str(exc)]
    if todo is None:
        return []
    return [
        *(str(step) for step in todo.steps),
        *(f"{address} is left alone: {reason}" for address, reason in todo.kept.items()),
        *(f"{address} is left alone: {reason}" for address, reason in todo.problems.items()),
    ]


def _rule(item: Any) -> Rule:
    wrong = _fault(item)
    if wrong is not None:
        raise ValueError(f"{_OPTION} {json.dumps(item)}: {wrong}")
    match = {key: value for key, value in item.items() if key in _MATCH}
    (spec,) = device_spec.parse([json.dumps(match)], _OPTION)
    count = item["numvfs"]
    return Rule(spec=spec, count=None if count == "all" else count, driver=item.get("vf_driver"))


def _fault(item: Any) -> str | None:
    """What is wrong with an object, but for what says which functions it means."""
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


def _unbound(function: pci.Function, rule: Rule, functions: pci.Snapshot) -> Iterator[Step]:
    if rule.driver is not None:
        for address in function.vfs:
            if address in functions and functions[address].driver is None:
                yield Step(address=address, driver=rule.driver)


class Keeper:
    """Makes the host's virtual functions what the option says, before each discovery pass."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._timeout = conf.agent.driver_timeout
        self._wrong: str | None = None
        self._rules: tuple[Rule, ...] = ()
        try:
            self._rules = parse(conf.agent.sriov_spec)
        except ValueError as exc:
            LOG.error("%s", exc)  # noqa: TRY400 - the sentence is all there is to say
            self._wrong = str(exc)
        self._attempt: Attempt[dict[str, str]] | None = None
        self._problems: dict[str, str] = {}
        #: How often a step failed on a function, and when it may be tried again.
        self._failures: dict[str, tuple[int, float]] = {}
        self._said: frozenset[str] = frozenset()

    def settle(self) -> dict[str, str]:
        """Make the changes that can be made; what is wrong, as an error of the report.

        A change that hangs in the kernel is left to itself, and no other is made meanwhile.
        """
        if self._wrong is not None:
            return {NAME: self._wrong}
        if not self._rules:
            return {}
        if self._attempt is None:
            self._attempt = Attempt("sriov", self._settle).start()
            finished = self._attempt.done(self._timeout)
        else:
            finished = self._attempt.done(0)
        if not finished:
            return {NAME: f"A change does not end within {self._timeout:g} seconds"}
        value, error = self._attempt.value, self._attempt.error
        self._attempt = None
        self._problems = value if value is not None else {"the host": str(error)}
        sentences = [f"{address}: {text}" for address, text in sorted(self._problems.items())]
        return {NAME: "; ".join(sentences)} if sentences else {}

    def _settle(self) -> dict[str, str]:
        now = time.monotonic()
        # What failed a short while ago is still wrong.
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
            if address not in self._said:
                LOG.info("PCI device %s keeps the virtual functions it has: %s", address, reason)
        self._said = frozenset(todo.kept)
        return {**failed, **todo.problems}

    def _try(self, step: Step) -> str | None:
        """Make a change; what is wrong, if anything."""
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
