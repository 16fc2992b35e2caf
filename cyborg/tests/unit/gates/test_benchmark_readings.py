# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks make of their figures, and what they read of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest


@pytest.fixture
def readings(benchmark_tool) -> Any:
    return benchmark_tool("readings")


def test_medians_take_the_rounds_that_have_a_figure(readings: Any) -> None:
    rounds = [{"a": 1.0, "b": 7.0}, {"a": 9.0}, {"a": 2.0}]
    assert readings.medians(rounds) == {"a": 2.0, "b": 7.0}


def test_table_says_how_much_better_and_what_is_reached(readings: Any) -> None:
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


def test_hosts_a_minute_are_medians_over_the_numbers_of_hosts(benchmark_tool) -> None:
    one = [{"first": first, "unchanged": 2000.0} for first in (190.0, 200.0, 999.0)]
    two = [{"first": 330.0, "unchanged": 3000.0}]
    head, _, *rows = benchmark_tool("scale").gains({1: one, 2: two}).splitlines()
    assert head.startswith("| conductors | new hosts a minute | times as many | unchanged hosts")
    assert rows == ["| 1 | 200 | 1 | 2,000 | 1 |", "| 2 | 330 | 1.65 | 3,000 | 1.5 |"]
