# SPDX-License-Identifier: Apache-2.0
"""What an audit has found, and how it is put right: what ``cyborg-status check`` prints."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Repair:
    """What can be done about findings."""

    #: What would be done, or why nothing is, in words; empty if the outcome says it all.
    explanation: str
    #: Does it; the outcome in words. None if nothing can safely be done.
    carry_out: Callable[[], str] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, and the check that found it."""

    check: str
    sentence: str
    #: Says how it can be repaired; other services may be asked. Findings in a row that have the
    #: same one are repaired together. None if there is no repair.
    plan: Callable[[], Repair] | None = None


def repair(
    found: Iterable[Finding], explain: Callable[[str], None]
) -> Iterator[tuple[Finding, str | None]]:
    """Repair what can be repaired, each after it was explained; what became of each finding."""
    for plan, findings in itertools.groupby(found, key=lambda each: each.plan):
        if plan is None:
            yield from ((each, None) for each in findings)
            continue
        together, planned = list(findings), plan()
        for each in together:
            if planned.explanation:
                explain(f"{each.sentence} {planned.explanation}")
        outcome = planned.carry_out() if planned.carry_out else ""
        yield from ((each, f"{planned.explanation} {outcome}".strip()) for each in together)
