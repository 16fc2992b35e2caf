# SPDX-License-Identifier: Apache-2.0
"""What systemd is told by a service, and the units that are shipped."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest
import requests

from cyborg.tests import ports
from cyborg.tests.standalone_site import TIMEOUT, wait_for

pytestmark = pytest.mark.slow

UNITS_FOLDER = pathlib.Path(__file__).parents[4] / "etc" / "systemd"
SUDO, KERNEL_LOG = "10-cyborg-agent-sudo.conf", "20-cyborg-agent-kernel-log.conf"
CDI = "30-cyborg-agent-cdi.conf"
#: Each unit as it is, and that of the agent with the changes that are shipped.
UNITS = {
    **{unit.stem: (unit.name, []) for unit in sorted(UNITS_FOLDER.glob("*.service"))},
    "agent-sudo": ("cyborg-agent.service", [SUDO]),
    "agent-log": ("cyborg-agent.service", [KERNEL_LOG]),
    "agent-cdi": ("cyborg-agent.service", [CDI]),
    "agent-both": ("cyborg-agent.service", [SUDO, KERNEL_LOG]),
}
#: Exposure in tenths, of 100, that ``systemd-analyze security`` permits: "OK" ends at 40.
MOST_EXPOSED = {
    "cyborg-agent": 35,
    "agent-log": 35,
    "agent-cdi": 35,
    "agent-sudo": 69,
    "agent-both": 70,
}
OTHERS_EXPOSED = 15
#: What implies NoNewPrivileges=yes for a user without CAP_SYS_ADMIN, see systemd.exec(5), as
#: ``systemd-analyze security`` calls it.
IMPLIES_NO_NEW_PRIVILEGES = (
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "NoNewPrivileges",
    "PrivateDevices",
    "ProtectClock",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "RestrictAddressFamilies_",
    "RestrictNamespaces_",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "SystemCallArchitectures",
    "SystemCallFilter_",
)
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


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    """A unit whose program is where this test runs, and not where it is installed."""
    name, changes = UNITS[request.param]
    copy = tmp_path / name
    folder = pathlib.Path(sys.executable).parent
    text = (UNITS_FOLDER / name).read_text()
    copy.write_text(text.replace("/usr/local/bin/", f"{folder}/"))
    for needed in UNITS_FOLDER.glob("*.socket"):
        (tmp_path / needed.name).write_text(needed.read_text())
    for change in changes:
        beside = tmp_path / f"{name}.d" / change
        beside.parent.mkdir(exist_ok=True)
        beside.write_text((UNITS_FOLDER / change).read_text())
    return copy


def _about(unit: pathlib.Path, told: str) -> list[str]:
    """What was said of this unit; those of the machine may have faults of their own."""
    return [line for line in told.splitlines() if unit.name in line]


def test_the_unit_is_accepted_and_hardened(unit: pathlib.Path, request) -> None:
    """Sudo works, and the kernel's log is shown, where one of the changes wants that."""
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"SYSTEMD_LOG_LEVEL": "warning"},
    )
    assert (verified.returncode, _about(unit, verified.stderr)) == (0, [])
    kind = request.node.callspec.params["unit"]
    most = f"--threshold={MOST_EXPOSED.get(kind, OTHERS_EXPOSED)}"
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--json=short", most]
    judged = subprocess.run([*command, str(unit)], capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    lines = unit.read_text().splitlines()
    assert {"StateDirectory=cyborg", "LogsDirectory=cyborg", "ProtectSystem=strict"} <= set(lines)

    shown = {each["json_field"]: each["set"] for each in json.loads(judged.stdout)}
    implying = [
        name
        for name, is_set in shown.items()
        if is_set and name.startswith(IMPLIES_NO_NEW_PRIVILEGES)
    ]
    assert (not implying) == (SUDO in UNITS[kind][1]), implying
    if KERNEL_LOG in UNITS[kind][1]:
        assert not shown["ProtectKernelLogs"]
        assert not shown["CapabilityBoundingSet_CAP_SYSLOG"]
        change = unit.parent / f"{unit.name}.d" / KERNEL_LOG
        assert "AmbientCapabilities=CAP_SYSLOG\n" in change.read_text()


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("name", sorted(unit.stem for unit in UNITS_FOLDER.glob("*.service")))
def test_each_unit_reads_the_file_of_its_own_service(tmp_path, database_url, name) -> None:
    """As the pages have it for metrics: the group is in a file with the name of the command."""
    lines = (UNITS_FOLDER / f"{name}.service").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line.startswith("ExecStart="))
    environ = dict(line.split("=", 2)[1:] for line in lines if line.startswith("Environment="))
    folder, run = tmp_path / ".cyborg", tmp_path / "run"
    folder.mkdir()
    run.mkdir()
    (folder / "cyborg.conf").write_text(
        f"[DEFAULT]\ntransport_url = rabbit://127.0.0.1:1/\nstate_path = {tmp_path}\n"
        f"[database]\nconnection = {database_url}\n[api]\nauth_strategy = noauth\nthreads = 8\n"
    )
    port, log = ports.free_port(), tmp_path / "own.log"
    (folder / f"{name}.conf").write_text(
        f"[DEFAULT]\nlog_file = {log}\n[metrics]\nport = {port}\n"
        "[nova_watcher]\nauth_type = none\nendpoint_override = http://127.0.0.1:1\n"
    )
    places = {"/etc/cyborg": str(folder), "/run/cyborg-api": str(run)}
    own = {key: places.get(value, value) for key, value in environ.items()}
    listens = f"127.0.0.1:{ports.free_port()}"
    command = given["ExecStart"].replace("127.0.0.1:6666", listens)
    command = command.replace("--workers 4", "--workers 1")
    command = command.replace("/usr/local/bin", str(pathlib.Path(sys.executable).parent))

    def metrics() -> str | None:
        try:
            if name == "cyborg-api":
                # What its processes add up is there from the first request on.
                requests.get(f"http://{listens}/", timeout=TIMEOUT)
            return requests.get(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT).text
        except requests.ConnectionError:
            return None

    own["HOME"] = str(tmp_path)
    with subprocess.Popen(command.split(), env=os.environ | own) as process:
        try:
            wait_for("its log", lambda: log.exists() or None)
            if name != "cyborg-nova-watcher":
                assert "cyborg_" in str(wait_for("its metrics", metrics))
            assert "is not read" not in log.read_text()
            assert bool(list(run.iterdir())) == (name == "cyborg-api")
        finally:
            process.terminate()
            process.wait(PATIENCE)
