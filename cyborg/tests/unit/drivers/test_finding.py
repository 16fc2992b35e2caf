# SPDX-License-Identifier: Apache-2.0
"""What was found is repaired and told, whatever fails after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cyborg.audits.finding import Finding, Repair, repair


class Away(Exception):
    """Another service does not answer."""


def test_what_was_found_before_an_audit_fails_is_repaired() -> None:
    done: list[str] = []

    def mend() -> str:
        done.append("mended")
        return "Done."

    def plan() -> Repair:
        return Repair("It is mended.", mend)

    def find() -> Iterator[Finding]:
        yield Finding("a", "One is wrong.", plan)
        yield Finding("a", "Another is wrong.", plan)
        raise Away

    explained: list[str] = []
    found = repair(find(), explained.append)
    told = [next(found), next(found)]
    with pytest.raises(Away):
        next(found)
    assert [outcome for _, outcome in told] == ["It is mended. Done."] * 2
    assert explained == ["One is wrong. It is mended.", "Another is wrong. It is mended."]
    assert done == ["mended"]


def test_what_cannot_be_repaired_and_what_has_no_plan_is_told() -> None:
    def plan() -> Repair:
        raise Away

    found = [Finding("a", "One."), Finding("a", "It is wrong.", plan), Finding("a", "So is this.")]
    told = repair(found, print)
    assert [next(told), next(told)] == [(each, None) for each in found[:2]]
    with pytest.raises(Away):
        next(told)
