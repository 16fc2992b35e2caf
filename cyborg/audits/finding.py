# SPDX-License-Identifier: Apache-2.0
"""Findings of audits and their repairs, as ``cyborg-status check`` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Repair:
    """The repair of findings that have the same plan."""

    #: The repair in words, or why there is none; empty if the outcome says it all.
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
    """Repair what can be repaired, each after it was explained; what became of each finding.

    What was found before an audit fails is repaired nevertheless.
    """
    together: list[Finding] = []
    try:
        for each in found:
            if together and each.plan != together[0].plan:
                whole, together = together, []
                yield from _put_right(whole, explain)
            together.append(each)
    except Exception:
        yield from _put_right(together, explain)
        raise
    yield from _put_right(together, explain)


def _put_right(
    together: Sequence[Finding], explain: Callable[[str], None]
) -> Iterator[tuple[Finding, str | None]]:
    """Repair findings that have the same plan. They are told also if that fails."""
    outcome: str | None = None
    try:
        if together and together[0].plan is not None:
            planned = together[0].plan()
            for each in together:
                if planned.explanation:
                    explain(f"{each.sentence} {planned.explanation}")
            did = planned.carry_out() if planned.carry_out else ""
            outcome = f"{planned.explanation} {did}".strip()
    finally:
        yield from ((each, outcome) for each in together)
