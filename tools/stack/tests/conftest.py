# SPDX-License-Identifier: Apache-2.0
"""The running stack, servers that are removed, and what must be true when none is left."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scene import Scene
from stack import Stack

_SIZES = pytest.StashKey[dict[Path, int]]()
#: Faults, and what our API refuses.
_BAD = re.compile("ERROR|CRITICAL|was answered 4")
#: How many lines of a log are shown.
_LINES = 20


@pytest.fixture(scope="session")
def stack() -> Stack:
    """The stack of the directory that the environment names, started as far as it is not."""
    running = Stack(Path(os.environ["CYBORG_STACK_STATE"]))
    running.up()
    return running


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember how long the logs are."""
    item.stash[_SIZES] = {log: log.stat().st_size for log in _logs()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[pytest.TestReport]:
    """Show with a failure the log lines since the test began."""
    report = yield
    if report.failed:
        for log in _logs():
            said = log.read_bytes()[item.stash[_SIZES].get(log, 0) :].decode(errors="replace")
            bad = [line for line in said.splitlines() if _BAD.search(line)]
            if bad:
                report.sections.append((log.name, "\n".join(bad[-_LINES:])))
    return report


def _logs() -> list[Path]:
    return sorted((Path(os.environ["CYBORG_STACK_STATE"]) / "logs").glob("*.log"))


@pytest.fixture(scope="session")
def prepared(stack: Stack) -> Scene:
    """What every test needs: an image, device profiles, flavors."""
    scene = Scene(stack)
    scene.prepare()
    return scene


@pytest.fixture
def scene(prepared: Scene) -> Iterator[Scene]:
    """Servers may be made; afterwards all are deleted, and nothing of them is left anywhere."""
    yield prepared
    prepared.clear()
    prepared.check_at_rest()
