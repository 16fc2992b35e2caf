# SPDX-License-Identifier: Apache-2.0
"""The gate on subjects of commits fires, in a whole clone and in a shallow one."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

GATE = pathlib.Path(__file__).parents[4] / "tools" / "gates" / "subjects.py"

GOOD = [
    "api: refuse a body that is too large",
    "api-ref, docs: say what 2.4 has",
    "db/migrations: bring the columns in at once",
    "nova: address 3 hosts",
]
BAD = [
    "x",
    "docs",
    "docs: x",
    "docs: update",
    "docs: fixes the links",
    "docs: fixed the links",
    "docs: fixing the links",
    "docs: the links are right",
    "docs: Mend the links",
    "docs: mend the links.",
    "Mend the links of the docs",
    "docs:mend the links",
    f"docs: mend {'l' * 62}",
]


def git(folder: pathlib.Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: pathlib.Path, *subjects: str) -> str:
    for subject in subjects:
        git(folder, "commit", "--quiet", "--allow-empty", "--message", subject)
    return git(folder, "rev-parse", "HEAD")


def gate(folder: pathlib.Path, base: str) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, str(GATE), base], cwd=folder, check=False, capture_output=True, text=True
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.fixture
def history(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "history"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    return folder


def test_only_what_comes_after_the_base_is_looked_at(history: pathlib.Path) -> None:
    base = commit(history, *BAD)
    commit(history, *GOOD)
    assert gate(history, base) == (0, "")


@pytest.mark.parametrize("subject", BAD)
def test_a_subject_that_says_too_little_or_too_much_is_refused(
    history: pathlib.Path, subject: str
) -> None:
    base = commit(history, "x")
    commit(history, subject, *GOOD)
    status, said = gate(history, base)
    assert status == 1
    assert said.endswith(f": {subject}\n")
    assert said.count("\n") == 1


def test_a_merge_may_have_any_subject(history: pathlib.Path) -> None:
    base = commit(history, "x")
    git(history, "switch", "--quiet", "--create", "other")
    commit(history, GOOD[0])
    git(history, "switch", "--quiet", "main")
    git(history, "merge", "--quiet", "--no-ff", "--message", "merge: other", "other")
    assert gate(history, base) == (0, "")


def test_a_shallow_clone_does_not_need_the_base(history: pathlib.Path) -> None:
    base = commit(history, "x")
    commit(history, "docs: fixed", GOOD[0])
    clones = {depth: history.with_name(str(depth)) for depth in (1, 2)}
    for depth, folder in clones.items():
        git(history, "clone", "--quiet", f"--depth={depth}", f"file://{history}", str(folder))
    assert gate(clones[1], base) == (0, "")
    status, said = gate(clones[2], base)
    assert (status, said.count("\n")) == (1, 1)
    assert "docs: fixed" in said


def test_a_whole_clone_needs_the_base(history: pathlib.Path) -> None:
    commit(history, GOOD[0])
    status, said = gate(history, "0" * 40)
    assert status == 1
    assert "name another base" in said


def test_an_archive_has_no_commits(tmp_path: pathlib.Path) -> None:
    assert gate(tmp_path, "0" * 40)[0] == 0
