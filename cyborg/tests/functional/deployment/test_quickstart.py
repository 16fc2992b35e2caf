# SPDX-License-Identifier: Apache-2.0
"""The quickstart shows a life cycle, as in its picture, and the status page, and leaves nothing."""

from __future__ import annotations

import os
import pathlib
import pty
import runpy
import signal
import subprocess
import sys

import pytest
import requests

from cyborg.tests.servers import REPOSITORY

pytestmark = pytest.mark.slow

PATIENCE = 120
PROGRAM = REPOSITORY / "tools" / "quickstart.py"


def test_the_picture_is_of_what_it_prints() -> None:
    """If this fails, run tools/draw_terminal.py as it says."""
    command = [sys.executable, str(PROGRAM), "--once"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "0 of 16 FPGAs in use" in printed
    assert [line for line in printed.splitlines() if len(line) > 80] == []
    tool = runpy.run_path(str(REPOSITORY / "tools" / "draw_terminal.py"))
    assert tool["draw"](printed) == tool["PICTURE"].read_text()


def assert_nothing_is_left(
    process: subprocess.Popen[str], number: signal.Signals, folder: pathlib.Path
) -> None:
    """Of its processes and its files, after it got a signal."""
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    process.send_signal(number)
    assert process.wait(PATIENCE) == 128 + number
    assert [child for child in children if pathlib.Path("/proc", child).exists()] == []
    assert list(folder.iterdir()) == []


def test_nothing_outlives_its_terminal(tmp_path: pathlib.Path) -> None:
    # Whoever started the tests may have them ignore the end of a terminal.
    with subprocess.Popen(
        ["env", "--default-signal", sys.executable, str(PROGRAM)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        try:
            assert process.stdout is not None
            next(line for line in process.stdout if line.startswith("1. "))
            assert_nothing_is_left(process, signal.SIGHUP, tmp_path)
        finally:
            process.kill()


def test_on_a_desktop_the_status_page_opens(tmp_path: pathlib.Path) -> None:
    opened, browser, state = (tmp_path / name for name in ("opened", "browser", "state"))
    state.mkdir()
    browser.write_text(f'#!/bin/sh\necho "$1" >{opened}\n')
    browser.chmod(0o755)
    desktop = {"DISPLAY": ":0", "BROWSER": f"{browser} %s", "TMPDIR": str(state)}
    ours, its = pty.openpty()
    environment = os.environ | desktop
    with (
        subprocess.Popen(
            [sys.executable, PROGRAM], stdout=its, text=True, env=environment
        ) as process,
        os.fdopen(ours) as terminal,
    ):
        try:
            os.close(its)
            line = next(each for each in terminal if "status page" in each)
            url = line.rpartition(" ")[2].strip()
            answer = requests.get(url, headers={"Accept": "text/html"}, timeout=PATIENCE)
            assert answer.headers["Content-Type"].startswith("text/html")
            assert_nothing_is_left(process, signal.SIGTERM, state)
        finally:
            process.kill()
    assert opened.read_text().strip() == url


def test_without_a_terminal_nothing_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    assert not runpy.run_path(str(PROGRAM))["has_desktop"]()
