# SPDX-License-Identifier: Apache-2.0
"""Results of the last test run in a stestr repository: counts, and a JUnit report."""

from __future__ import annotations

import collections
import io
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import subunit
import testtools
from processes import BIN, Failed

_OUTCOMES = {"success": "passed", "xfail": "passed", "skip": "skipped"}


def last(workspace: Path) -> list[dict[str, Any]]:
    """Each test of the last run, as testtools describes it, and its ``outcome``."""
    command = [str(BIN / "stestr"), "last", "--subunit"]
    done = subprocess.run(command, cwd=workspace, stdout=subprocess.PIPE, check=False)
    tests: list[dict[str, Any]] = []
    stream = testtools.StreamToDict(tests.append)
    stream.startTestRun()
    subunit.ByteStreamToStreamResult(io.BytesIO(done.stdout)).run(stream)
    stream.stopTestRun()
    if not tests:
        raise Failed("tempest ran no test")
    for test in tests:
        # A test that is still in progress ended with its process.
        test["outcome"] = _OUTCOMES.get(test["status"], "failed")
    return tests


def count(tests: list[dict[str, Any]]) -> collections.Counter[str]:
    """The numbers of tests that passed, failed and were skipped."""
    return collections.Counter(test["outcome"] for test in tests)


def write_junit(tests: list[dict[str, Any]], path: Path) -> None:
    """Write a report in pytest's format, for tools/junit_summary.py."""
    counts = count(tests)
    times = [[time.timestamp() for time in test["timestamps"] if time] for test in tests]
    suite = ElementTree.Element(
        "testsuite",
        name="tempest",
        tests=str(len(tests)),
        failures=str(counts["failed"]),
        skipped=str(counts["skipped"]),
        time=f"{sum(max(pair) - min(pair) for pair in times if pair):.3f}",
    )
    for test in tests:
        case = ElementTree.SubElement(suite, "testcase", name=test["id"])
        if test["outcome"] != "passed":
            tag = "failure" if test["outcome"] == "failed" else "skipped"
            text = "\n".join(detail.as_text() for detail in test["details"].values())
            # XML does not permit most control characters.
            kept = "".join(sign for sign in text if sign.isprintable() or sign in "\n\t")
            ElementTree.SubElement(case, tag).text = kept
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(path, encoding="unicode", xml_declaration=True)
