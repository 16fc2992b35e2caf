# SPDX-License-Identifier: Apache-2.0
"""Benchmarks as modules of the test's process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import pytest

from cyborg.tests.servers import REPOSITORY


@pytest.fixture
def benchmark_tool(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a module of the benchmarks, by a name that may mean another in other tests."""
    folder = REPOSITORY / "tools/benchmarks"
    monkeypatch.syspath_prepend(folder)
    for path in folder.glob("*.py"):
        # Forgotten afterwards.
        monkeypatch.setitem(sys.modules, path.stem, None)
        del sys.modules[path.stem]
    return importlib.import_module
