# SPDX-License-Identifier: Apache-2.0
"""``pytest --room NAME`` takes the tests of one room of the code, such as ``arqs``."""

from __future__ import annotations

import pathlib
import re

import pytest


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Pass over modules of other rooms. Where this is a plugin of a module there is no option."""
    room = config.getoption("--room", None)
    if not room or not collection_path.name.startswith("test_"):
        return None
    return None if is_of(collection_path, room) else True


def is_of(module: pathlib.Path, room: str) -> bool:
    """Whether the module or its folder has that name, or it imports that room of the code."""
    if room == module.parent.name or f"test_{room}" == module.stem:
        return True
    wanted = rf"^\s*(from cyborg import (.*\b)?{room}\b|(from|import) cyborg\.{room}\b)"
    return bool(re.search(wanted, module.read_text(), re.MULTILINE))
