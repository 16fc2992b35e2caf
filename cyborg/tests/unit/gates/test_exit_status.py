# SPDX-License-Identifier: Apache-2.0
"""A gate that finds something fails as a program too: tox sees nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cyborg.tests.servers import REPOSITORY


@pytest.mark.parametrize("gate", ["migrations.py", "names.py", "sentences.py", "subjects.py"])
def test_a_gate_that_finds_something_ends_with_1(git, tmp_path, gate) -> None:
    """Here are two migrations, no class, a sentence, and a bad subject after the base."""
    git("commit", "--quiet", "--allow-empty", "--message", "base")
    versions = tmp_path / "history/cyborg/db/migrations/versions"
    versions.mkdir(parents=True)
    for name in ("v18_0_0.py", "v18_1_0.py"):
        (versions / name).write_text('"What is left."\nHELP = "What is left."\n')
    git("commit", "--quiet", "--allow-empty", "--message", "bad")
    arguments = [git("rev-parse", "HEAD^")] if gate == "subjects.py" else []
    command = [sys.executable, str(REPOSITORY / "tools/gates" / gate), *arguments]
    done = subprocess.run(command, cwd=tmp_path / "history", capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout
