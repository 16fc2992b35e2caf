# SPDX-License-Identifier: Apache-2.0
"""What systemd is told by a service, and the units that are shipped."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parents[3]
UNITS = sorted((REPOSITORY / "etc" / "systemd").glob("*.service"))
#: Exposure in tenths, of 100, that ``systemd-analyze security`` permits: "OK" ends at 40.
MOST_EXPOSED = {"cyborg-agent": 35}
OTHERS_EXPOSED = 15
PATIENCE = 60


def test_a_service_tells_systemd_how_it_is(tmp_path: pathlib.Path) -> None:
    conf = tmp_path / "cyborg.conf"
    conf.write_text(f"[DEFAULT]\ntransport_url = rabbit://127.0.0.1:1/\nstate_path = {tmp_path}\n")
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(PATIENCE)
        program = pathlib.Path(sys.executable).with_name("cyborg-agent")
        command = [str(program), "--config-file", str(conf)]
        with subprocess.Popen(command, env=os.environ | {"NOTIFY_SOCKET": str(path)}) as agent:
            told = [manager.recv(100) for _ in range(3)]
            agent.send_signal(signal.SIGTERM)
            while told[-1] == b"WATCHDOG=1":
                told.append(manager.recv(100))
    assert told[:3] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    assert told[-1] == b"STOPPING=1"


@pytest.fixture(params=UNITS, ids=lambda unit: unit.stem)
def unit(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    """A unit whose program is where this test runs, and not where it is installed."""
    copy = tmp_path / request.param.name
    folder = pathlib.Path(sys.executable).parent
    copy.write_text(request.param.read_text().replace("/usr/local/bin/", f"{folder}/"))
    return copy


def test_systemd_accepts_the_unit(unit: pathlib.Path) -> None:
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"SYSTEMD_LOG_LEVEL": "warning"},
    )
    assert (verified.returncode, _about(unit, verified.stderr)) == (0, [])


def _about(unit: pathlib.Path, told: str) -> list[str]:
    """What was said of this unit; those of the machine may have faults of their own."""
    return [line for line in told.splitlines() if unit.name in line]


def test_the_unit_is_hardened(unit: pathlib.Path) -> None:
    threshold = f"--threshold={MOST_EXPOSED.get(unit.stem, OTHERS_EXPOSED)}"
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", threshold, unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
