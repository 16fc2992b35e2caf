# SPDX-License-Identifier: Apache-2.0
"""What ``tools/benchmarks/compare.py`` makes of its figures, and what it reads of processes."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import pytest

_FILE = pathlib.Path(__file__).parents[4] / "tools/benchmarks/readings.py"


@pytest.fixture(scope="module")
def readings() -> Any:
    """The module, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("benchmark_readings", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_medians_take_the_rounds_that_have_a_figure(readings: Any) -> None:
    """What is measured in one round only is not lost."""
    rounds = [{"a": 1.0, "b": 7.0}, {"a": 9.0}, {"a": 2.0}]
    assert readings.medians(rounds) == {"a": 2.0, "b": 7.0}


def test_table_says_how_much_better_and_what_is_reached(readings: Any) -> None:
    """More boots and fewer milliseconds are both better."""
    measures = {
        "boots": readings.Measure("boots", "a second", True, 4),
        "cpu": readings.Measure("CPU", "ms", figure=40),
        "list": readings.Measure("list", "ms", ratio=3),
        "plain": readings.Measure("plain", ""),
        "unmeasured": readings.Measure("unmeasured", ""),
    }
    ours = {"boots": 10.0, "cpu": 50.0, "list": 10.0, "plain": 1.0}
    theirs = {"boots": 2.0, "cpu": 100.0, "list": 20.0}
    rows = readings.table(measures, ours, theirs).splitlines()[2:]
    assert rows == [
        "| boots (a second) | 2 | 10 | 5 | 4 times | yes |",
        "| CPU (ms) | 100 | 50 | 2 | 40 ms | no |",
        "| list (ms) | 20 | 10 | 2 | 3 times | no |",
        "| plain | – | 1 | – |  |  |",
    ]
    shown = readings.rst(readings.table(measures, ours, theirs))
    assert "   * - boots (a second)\n     - 2\n     - 10\n     - 5\n" in shown


def test_an_endpoint_has_a_column_of_its_own(readings: Any) -> None:
    """It may be measured beside the others, or alone, and not everything of it."""
    measures = {
        "boots": readings.Measure("boots", "a second", True, 4),
        "cpu": readings.Measure("CPU", "ms", figure=40),
    }
    endpoint = {"boots": 7.0}
    beside = readings.table(measures, {"boots": 9.0, "cpu": 30.0}, {}, endpoint).splitlines()
    assert beside == [
        "| work | upstream | ours | times as good | aim | reached | endpoint |",
        "|---|--:|--:|--:|--:|---|--:|",
        "| boots (a second) | – | 9 | – | 4 times |  | 7 |",
        "| CPU (ms) | – | 30 | – | 40 ms | yes | – |",
    ]
    alone = readings.table(measures, {}, {}, endpoint).splitlines()
    assert alone[2:] == ["| boots (a second) | – | – | – | 4 times |  | 7 |"]


def test_cpu_and_memory_are_of_the_process_and_what_is_below_it(readings: Any) -> None:
    """A child that works is seen through its parent."""
    work = "while True: pass"
    started = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    with subprocess.Popen([sys.executable, "-c", started, work]) as parent:
        try:
            deadline = time.monotonic() + 60
            while readings.cpu(readings.tree(parent.pid)[1:]) == 0:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            pids = readings.tree(parent.pid)
            assert len(pids) == 2
            assert readings.pss(pids) > readings.pss(pids[:1]) > 0
        finally:
            for pid in reversed(readings.tree(parent.pid)):
                os.kill(pid, 9)
    assert readings.cpu([parent.pid]) == 0
