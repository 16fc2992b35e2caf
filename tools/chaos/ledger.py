# SPDX-License-Identifier: Apache-2.0
"""What clients saw and what processes did, by one clock; and whether the two agree.

All times are the system's monotonic clock, which every process of the machine shares.
"""

from __future__ import annotations

import bisect
import collections
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class Tenure:
    """The time in which a guest had an attach handle, from when it first saw the ARQ Bound."""

    arq: str
    handle: str
    hostname: str
    info: Mapping[str, str]
    since: float
    until: float | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """A host's record of one of its steps."""

    at: float
    action: str
    outcome: str


class Ledger:
    """Counts what happened, and keeps a sentence for each violation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tenants: dict[str, Tenure] = {}
        self._tenures: list[Tenure] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.violations: list[str] = []
        #: Seconds from a request to bind until all of an instance's ARQs were seen resolved.
        self.waits: list[float] = []

    def count(self, what: str, number: int = 1) -> None:
        """Add to a count."""
        with self._lock:
            self.counts[what] += number

    def violate(self, sentence: str) -> None:
        """Record a violation."""
        with self._lock:
            self.violations.append(sentence)
        print(f"chaos: VIOLATION: {sentence}", flush=True)

    def bound(self, arq: Mapping[str, Any]) -> None:
        """An ARQ was seen Bound by the guest that it is for."""
        tenure = Tenure(
            arq=arq["uuid"],
            handle=arq["attach_handle_uuid"],
            hostname=arq["hostname"],
            info=arq["attach_handle_info"],
            since=time.monotonic(),
        )
        with self._lock:
            other = self._tenants.get(tenure.handle)
            if other is None:
                self._tenants[tenure.handle] = tenure
                self._tenures.append(tenure)
                self.counts["ARQs bound"] += 1
                return
        if other.arq != tenure.arq:
            self.violate(
                f"Attach handle {tenure.handle} is shown to ARQ {tenure.arq} while ARQ "
                f"{other.arq} has it."
            )

    def leaving(self, arqs: Sequence[str]) -> None:
        """The guest is about to give these ARQs back."""
        with self._lock:
            for handle, tenure in list(self._tenants.items()):
                if tenure.arq in arqs:
                    tenure.until = time.monotonic()
                    del self._tenants[handle]

    def handles(self) -> dict[str, str]:
        """Who has which attach handle now: ARQ to handle."""
        with self._lock:
            return {tenure.arq: handle for handle, tenure in self._tenants.items()}

    def done(self) -> int:
        """A number that grows as clients make progress."""
        with self._lock:
            return self.counts["ARQs bound"] + self.counts["ARQs deleted"]

    def wait(self, seconds: float) -> None:
        """Record the seconds that a bind took for its client."""
        with self._lock:
            self.waits.append(seconds)

    def tenures(self) -> list[Tenure]:
        """Every tenure, the oldest first."""
        with self._lock:
            return sorted(self._tenures, key=lambda tenure: tenure.since)


def read_steps(path: Path) -> dict[str, list[Step]]:
    """The steps that a host recorded, in order, by the attach handle's :func:`place`."""
    steps: dict[str, list[Step]] = collections.defaultdict(list)
    for line in path.read_text().splitlines():
        at, info, action, outcome = json.loads(line)
        steps[place(info)].append(Step(at=at, action=action, outcome=outcome))
    return steps


def place(info: Mapping[str, str]) -> str:
    """What identifies an attach handle on its host."""
    return json.dumps(dict(info), sort_keys=True)


def improper_steps(tenures: Sequence[Tenure], steps: Mapping[str, Sequence[Step]]) -> Iterator[str]:
    """A sentence for each tenure on one host that contradicts the host's steps.

    A handle must be cleaned after its last guest and then prepared before the next guest has it,
    and must not be cleaned while a guest has it.
    """
    last: dict[str, Tenure] = {}
    for tenure in tenures:
        where = place(tenure.info)
        noted = steps.get(where, ())
        before = noted[: bisect.bisect_left(noted, tenure.since, key=lambda step: step.at)]
        done = [step.action for step in before if step.outcome == "done"]
        if done[-1:] != ["prepare"]:
            yield f"ARQ {tenure.arq} was Bound to {where}, not prepared after {done[-2:]}."
        former = last.get(where)
        if former is not None and former.until is not None:
            since = [step for step in before if step.at > former.until and step.outcome == "done"]
            if "clean" not in {step.action for step in since}:
                yield f"ARQ {tenure.arq} was Bound to {where}, not cleaned after ARQ {former.arq}."
        until = tenure.until or time.monotonic()
        for step in noted[len(before) :]:
            if step.action == "clean" and step.at < until:
                yield f"{where} was cleaned ({step.outcome}) while ARQ {tenure.arq} had it."
        last[where] = tenure
