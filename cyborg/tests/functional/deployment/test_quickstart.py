# SPDX-License-Identifier: Apache-2.0
"""The quickstart leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from cyborg.tests.servers import REPOSITORY

pytestmark = pytest.mark.slow

PATIENCE = 120


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_nothing_outlives_its_terminal(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    program = REPOSITORY / "tools" / "quickstart.py"
    # Whoever started the tests may have them ignore the end of a terminal.
    with subprocess.Popen(
        ["env", "--default-signal", sys.executable, str(program)],
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
