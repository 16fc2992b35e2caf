#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sum up the JUnit reports in a folder as one line in pytest's manner, and name flaky tests."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

#: The most tests of a run that may fail and then pass.
FLAKY_MAX = 2


def flaky(reports: list[Path]) -> list[str]:
    """The names of the tests that failed and passed when they were run again."""
    return [
        found.get("value", "")
        for report in reports
        for found in ElementTree.parse(report).getroot().iter("property")
        if found.get("name") == "flaky"
    ]


def summary(reports: list[Path]) -> str:
    """Return ``=== 312 passed, 0 failed, 2 skipped in 35.2s ===`` for all reports together."""
    tests = failed = skipped = 0
    seconds = 0.0
    for report in reports:
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            tests += int(suite.get("tests", 0))
            failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped += int(suite.get("skipped", 0))
            seconds += float(suite.get("time", 0))
    passed = tests - failed - skipped
    return f"=== {passed} passed, {failed} failed, {skipped} skipped in {seconds:.1f}s ==="


def main() -> int:
    """Print flaky tests and the summary; nothing where no pytest ran. 1 if too many are flaky."""
    reports = sorted(Path(sys.argv[1]).glob("*.xml"))
    if not reports:
        return 0
    names = flaky(reports)
    for name in names:
        print(f"FLAKY, failed and then passed; mend it first: {name}")
    if len(names) > FLAKY_MAX:
        print(f"FAILED: {len(names)} tests are flaky, {FLAKY_MAX} may be")
    print(summary(reports))
    return int(len(names) > FLAKY_MAX)


if __name__ == "__main__":
    sys.exit(main())
