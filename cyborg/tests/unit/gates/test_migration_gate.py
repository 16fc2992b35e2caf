# SPDX-License-Identifier: Apache-2.0
"""The gate that keeps one migration until the first release, and each as it was released."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from cyborg.tests import servers

GATE = servers.REPOSITORY / "tools/gates/migrations.py"


class Project:
    """A repository with nothing but migrations."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self.git("init", "--quiet")
        self.change("__init__", "")
        self.change("v18_0_0", "1")

    def git(self, *arguments: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(self._folder), *who, *arguments], check=True)

    def change(self, name: str, text: str) -> None:
        """Commit a migration."""
        module = self._folder / f"cyborg/db/migrations/versions/{name}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(text)
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", name)

    def said(self) -> str:
        """What the gate prints; nothing if it lets pass."""
        command = [sys.executable, str(GATE)]
        done = subprocess.run(
            command, cwd=self._folder, stdout=subprocess.PIPE, text=True, check=False
        )
        assert (done.returncode == 0) == (not done.stdout)
        return done.stdout


@pytest.fixture
def project(tmp_path: pathlib.Path) -> Project:
    return Project(tmp_path)


def test_until_the_release_the_one_migration_is_amended(project: Project) -> None:
    project.change("v18_0_0", "2")
    assert not project.said()
    project.change("v18_1_0", "1")
    assert "18.0.0 is not released" in project.said()


def test_after_it_there_are_more_and_it_is_left(project: Project) -> None:
    project.git("tag", "18.0.0")
    project.change("v18_1_0", "1")
    project.change("v18_1_0", "2")
    assert not project.said()
    project.git("tag", "18.1.0")
    project.change("v18_1_0", "3")
    (said,) = project.said().splitlines()
    assert said.endswith("v18_1_0.py was released with 18.1.0: leave it, and add another migration")
    project.change("v18_0_0", "2")
    assert project.said().count("v18_0_0.py was released with 18.0.0") == 1
