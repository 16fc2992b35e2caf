# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of gates."""

from __future__ import annotations

import pathlib
import runpy
import subprocess
import sys
from collections.abc import Callable

import pytest

from cyborg.tests.servers import REPOSITORY

Gate = Callable[..., tuple[int, str]]


@pytest.fixture
def gate(request, monkeypatch, capsys) -> Gate:
    """Runs the gate that the module names, in a folder: its exit status, and what it says."""
    name = request.module.GATE
    main = runpy.run_path(str(REPOSITORY / "tools/gates" / name))["main"]

    def run(folder: pathlib.Path, *arguments: object) -> tuple[int, str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        try:
            return main(), capsys.readouterr().out
        except SystemExit as ended:
            return int(bool(ended.code)), str(ended.code)

    return run


@pytest.fixture
def git(tmp_path: pathlib.Path) -> Callable[..., str]:
    """Runs git in a new repository, which is the test's folder ``history``; what it prints."""
    folder = tmp_path / "history"
    folder.mkdir()

    def run(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(folder), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "--quiet", "--initial-branch", "main")
    return run
