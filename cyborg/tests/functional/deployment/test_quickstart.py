# SPDX-License-Identifier: Apache-2.0
"""The quickstart shows a life cycle, as in its picture, and leaves nothing behind."""

from __future__ import annotations

import os
import pathlib
import runpy
import signal
import subprocess
import sys

import pytest

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
