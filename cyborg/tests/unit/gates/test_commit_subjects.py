# SPDX-License-Identifier: Apache-2.0
"""The gate on subjects of commits fires, in a whole clone and in a shallow one."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

GATE = "subjects.py"
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

Commit = Callable[..., str]


@pytest.fixture
def commit(git: Callable[..., str]) -> Commit:
    """Makes a commit for each subject; the last one."""

    def made(*subjects: str) -> str:
        for subject in subjects:
            git("commit", "--quiet", "--allow-empty", "--message", subject)
        return git("rev-parse", "HEAD")

    return made


def test_each_subject_after_the_base_is_looked_at(gate, git, commit: Commit, tmp_path) -> None:
    base = commit(*BAD)
    commit(*GOOD)
    git("switch", "--quiet", "--create", "other")
    commit(GOOD[0])
    git("switch", "--quiet", "main")
    # A merge may have any subject.
    git("merge", "--quiet", "--no-ff", "--message", "merge: other", "other")
    assert gate(tmp_path / "history", base) == (0, "")
    commit(*BAD)
    status, said = gate(tmp_path / "history", base)
    assert status == 1
    told = zip(reversed(BAD), said.splitlines(), strict=True)
    assert all(line.endswith(f": {subject}") for subject, line in told)


def test_a_shallow_clone_does_not_need_the_base(gate, git, commit, tmp_path: pathlib.Path) -> None:
    base = commit("x")
    commit("docs: fixed", GOOD[0])
    clones = {depth: tmp_path / str(depth) for depth in (1, 2)}
    for depth, folder in clones.items():
        whole = f"file://{tmp_path / 'history'}"
        git("clone", "--quiet", f"--depth={depth}", whole, str(folder))
    assert gate(clones[1], base) == (0, "")
    status, said = gate(clones[2], base)
    assert (status, said.count("\n")) == (1, 1)
    assert "docs: fixed" in said


def test_a_whole_clone_needs_the_base_and_an_archive_has_none(gate, commit, tmp_path) -> None:
    commit(GOOD[0])
    status, said = gate(tmp_path / "history", "0" * 40)
    assert status == 1
    assert "name another base" in said
    assert gate(tmp_path, "0" * 40)[0] == 0
