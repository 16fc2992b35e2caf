# SPDX-License-Identifier: Apache-2.0
"""Rooms of tests stay small, and what tests share stands in no test module."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

TESTS = pathlib.Path(__file__).parents[2]
#: The most test modules of one room.
MOST = 30


def imported(path: pathlib.Path) -> Iterator[str]:
    """The modules, and the names in them, that a module imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)


def is_of_tests_alone(name: str) -> bool:
    """Only pytest imports a module of tests or of a room's fixtures."""
    parts = name.split(".")
    return parts[:2] == ["cyborg", "tests"] and any(
        part == "conftest" or part.startswith("test_") for part in parts
    )


def breaches(tests: pathlib.Path) -> Iterator[str]:
    """A sentence for each module and each room that is not as they all are."""
    for path in sorted(tests.rglob("*.py")):
        where = path.relative_to(tests)
        for name in imported(path):
            if is_of_tests_alone(name):
                yield f"{where} imports {name}: put it in the room's conftest.py or in a helper"
    for room in sorted({path.parent for path in tests.rglob("test_*.py")}):
        if (count := len(list(room.glob("test_*.py")))) > MOST:
            yield f"{room.relative_to(tests)} has {count} test modules, at most {MOST}"


def test_the_rooms_are_as_agreed() -> None:
    assert list(breaches(TESTS)) == []


@pytest.mark.parametrize(
    "line",
    [
        "from cyborg.tests.functional.nova.test_boards import card",
        "from cyborg.tests.functional.nova import test_boards as boards",
        "from cyborg.tests.functional.nova.conftest import card",
        "import cyborg.tests.functional.nova.test_boards",
    ],
)
def test_an_import_from_a_test_module_is_refused(tmp_path: pathlib.Path, line: str) -> None:
    (tmp_path / "test_it.py").write_text(line + "\n")
    (sentence,) = breaches(tmp_path)
    assert sentence.startswith("test_it.py imports cyborg.tests.functional.nova.")


def test_a_crowded_room_is_refused(tmp_path: pathlib.Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    for number in range(MOST):
        (room / f"test_{number}.py").touch()
    assert list(breaches(tmp_path)) == []
    (room / "test_one_more.py").touch()
    assert list(breaches(tmp_path)) == [f"room has {MOST + 1} test modules, at most {MOST}"]
