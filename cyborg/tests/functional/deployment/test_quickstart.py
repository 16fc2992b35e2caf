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


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_nothing_outlives_its_terminal(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    # Whoever started the tests may have them ignore the end of a terminal.
    with subprocess.Popen(
        ["env", "--default-signal", sys.executable, str(PROGRAM)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("1. "):
                    break
            children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            assert children
            process.send_signal(number)
            assert process.wait(PATIENCE) == 128 + number
        finally:
            process.kill()
    assert [child for child in children.split() if pathlib.Path("/proc", child).exists()] == []
    assert list(tmp_path.iterdir()) == []


def test_on_a_desktop_the_status_page_opens(tmp_path: pathlib.Path) -> None:
    program = REPOSITORY / "tools" / "quickstart.py"
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >{opened}\n')
    browser.chmod(0o755)
    desktop = {"DISPLAY": ":0", "BROWSER": f"{browser} %s", "TMPDIR": str(tmp_path)}
    ours, its = pty.openpty()
    environment = os.environ | desktop
    with (
        subprocess.Popen([sys.executable, program], stdout=its, env=environment) as process,
        os.fdopen(ours) as terminal,
    ):
        try:
            os.close(its)
            line = next(each for each in terminal if "status page" in each)
            url = line.rpartition(" ")[2].strip()
            answer = requests.get(url, headers={"Accept": "text/html"}, timeout=PATIENCE)
            assert answer.headers["Content-Type"].startswith("text/html")
            process.terminate()
            assert process.wait(PATIENCE) == 128 + signal.SIGTERM
        finally:
            process.kill()
    assert opened.read_text().strip() == url


def test_without_a_terminal_nothing_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    assert not runpy.run_path(str(REPOSITORY / "tools" / "quickstart.py"))["has_desktop"]()
