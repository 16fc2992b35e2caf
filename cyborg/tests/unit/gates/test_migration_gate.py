# SPDX-License-Identifier: Apache-2.0
"""The gate that keeps one migration until the first release, and each as it was released."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

GATE = "migrations.py"
Change = Callable[[str, str], None]


@pytest.fixture
def change(git: Callable[..., str], tmp_path: pathlib.Path) -> Change:
    """Commits a migration, to a repository with nothing but one."""

    def committed(name: str, text: str) -> None:
        module = tmp_path / f"history/cyborg/db/migrations/versions/{name}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(text)
        git("add", ".")
        git("commit", "--quiet", "-m", name)

    committed("__init__", "# none")
    committed("v18_0_0", "1")
    return committed


def test_until_the_release_the_one_migration_is_amended(gate, change: Change, tmp_path) -> None:
    change("v18_0_0", "2")
    assert gate(tmp_path / "history") == (0, "")
    change("v18_1_0", "1")
    code, said = gate(tmp_path / "history")
    assert (code, "18.0.0 is not released" in said) == (1, True)


def test_after_it_there_are_more_and_it_is_left(gate, git, change: Change, tmp_path) -> None:
    git("tag", "18.0.0")
    change("v18_1_0", "1")
    change("v18_1_0", "2")
    assert gate(tmp_path / "history") == (0, "")
    git("tag", "18.1.0")
    change("v18_1_0", "3")
    code, said = gate(tmp_path / "history")
    told = "v18_1_0.py was released with 18.1.0: leave it, and add another migration\n"
    assert (code, said.count("\n"), said.endswith(told)) == (1, 1, True)
    change("v18_0_0", "2")
    assert gate(tmp_path / "history")[1].count("v18_0_0.py was released with 18.0.0") == 1
