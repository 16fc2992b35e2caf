# SPDX-License-Identifier: Apache-2.0
"""``tools/benchmarks/scale.py`` says what more conductors gain."""

from __future__ import annotations

import importlib
import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[4] / "tools/benchmarks"
MODULES = ("client", "plots", "readings", "scale", "sides", "work")


def test_hosts_a_minute_with_one_and_with_two_conductors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Medians over the numbers of hosts, so that one slow step says nothing."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in MODULES:
        # Forgotten afterwards: other tests may mean other modules by these names.
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    scale = importlib.import_module("scale")
    one = [{"first": first, "unchanged": 2000.0} for first in (190.0, 200.0, 999.0)]
    two = [{"first": 330.0, "unchanged": 3000.0}]
    head, _, *rows = scale.gains({1: one, 2: two}).splitlines()
    assert head.startswith("| conductors | new hosts a minute | times as many | unchanged hosts")
    assert rows == ["| 1 | 200 | 1 | 2,000 | 1 |", "| 2 | 330 | 1.65 | 3,000 | 1.5 |"]
