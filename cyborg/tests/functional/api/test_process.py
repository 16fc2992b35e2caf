# SPDX-License-Identifier: Apache-2.0
"""``cyborg-api`` and the WSGI module as processes of their own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from cyborg.tests import crowd
from cyborg.tests.one_service import PATIENCE, get
from cyborg.tests.ports import free_port

pytestmark = pytest.mark.usefixtures("database")

PROC_TCP = pathlib.Path("/proc/net/tcp")
PROFILE = json.dumps([{"name": "p", "groups": [{}]}])


def write_config(folder: pathlib.Path, database_url: str, **api: object) -> pathlib.Path:
    options = {"auth_strategy": "noauth", **api}
    lines = ["[DEFAULT]", "transport_url = fake://"]
    lines += ["[database]", f"connection = {database_url}", "[api]"]
    lines += [f"{name} = {value}" for name, value in options.items()]
    path = folder / "cyborg.conf"
    path.write_text("\n".join(lines))
    return path


def start(config: pathlib.Path, output: pathlib.Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cyborg.cmd.api", "--config-file", str(config)]
    with output.open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


@pytest.fixture
def config(tmp_path: pathlib.Path, database_url: str) -> pathlib.Path:
    return write_config(tmp_path, database_url, port=free_port())


@pytest.fixture
def served(
    config: pathlib.Path, tmp_path: pathlib.Path
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A running ``cyborg-api`` and its port."""
    port = int(config.read_text().rpartition("=")[2])
    process = start(config, tmp_path / "log")
    try:
        deadline = time.monotonic() + PATIENCE
        while get(port, "/") != 200:
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
        yield process, port
    finally:
        process.kill()
        process.wait()


def most_memory(process: subprocess.Popen[bytes]) -> int:
    """Bytes of memory that a process has had at most since :func:`forget_memory`."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return 1024 * int(found[1])


def forget_memory(process: subprocess.Popen[bytes]) -> None:
    pathlib.Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def timed(port: int, path: str) -> tuple[int | None, float]:
    """The answer's status, and the seconds until it was there."""
    began = time.monotonic()
    return get(port, path), time.monotonic() - began


def test_a_crowd_of_wasteful_clients_takes_little_from_the_others(
    served: tuple[subprocess.Popen[bytes], int],
) -> None:
    process, port = served
    # What the document takes when it is made is taken without a crowd, too.
    for path in ("/v2/devices", "/v2/openapi.json") * 10:
        assert get(port, path) == 200
    forget_memory(process)
    before = most_memory(process)
    with crowd.Crowd(port):
        answers = []
        end = time.monotonic() + 6
        while time.monotonic() < end:
            answers.append(timed(port, "/v2/devices"))
    assert {status for status, _ in answers} == {200}
    assert max(seconds for _, seconds in answers) < 1
    assert most_memory(process) - before < 50_000_000


def test_clients_that_do_not_read_stop_nobody(
    served: tuple[subprocess.Popen[bytes], int],
) -> None:
    _, port = served
    paths = ("/v2/devices", "/healthcheck")
    usual = [get(port, path) for path in paths]
    with (
        crowd.not_reading(port, "/v2/openapi.json", 64, "127.0.2.1"),
        crowd.not_reading(port, "/healthcheck", 64, "127.0.2.2"),
    ):
        for _ in range(40):
            answers = [timed(port, path) for path in paths]
            assert [status for status, _ in answers] == usual
            assert max(seconds for _, seconds in answers) < 3
            time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_when_what_is_under_way_is_answered(
    served: tuple[subprocess.Popen[bytes], int], database: sa.Engine, number: signal.Signals
) -> None:
    process, port = served
    sent, answers = threading.Event(), []

    def create() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        with contextlib.closing(connection):
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v2/device_profiles", PROFILE, headers)
            sent.set()
            answers.append(connection.getresponse().status)

    with database.connect().execution_options(cyborg_writer=True) as connection:
        connection.exec_driver_sql("UPDATE hosts SET node = node")  # holds SQLite's write lock
        waiting = threading.Thread(target=create)
        waiting.start()
        assert sent.wait(PATIENCE)
        wait_until_all_is_read(port)
        process.send_signal(number)
        connection.rollback()
    waiting.join(PATIENCE)
    assert answers == [201]
    assert process.wait(PATIENCE) == 0
    assert get(port, "/") is None


def wait_until_all_is_read(port: int) -> None:
    """Return when the server has read all that was sent to its port."""
    deadline = time.monotonic() + PATIENCE
    # First that all has arrived, which a busy kernel puts off.
    for under_way in (unsent, unread):
        while any(under_way(line, port) for line in PROC_TCP.read_text().splitlines()):
            assert time.monotonic() < deadline


def unsent(line: str, port: int) -> int:
    """The bytes that have not arrived at the port, of a line of /proc/net/tcp."""
    _, _, remote, state, queues, *_ = line.split()
    established = state == "01" and remote.endswith(f":{port:04X}")
    return int(queues.partition(":")[0], 16) if established else 0


def unread(line: str, port: int) -> int:
    """The bytes that wait on a connection to the port, of a line of /proc/net/tcp."""
    _, local, _, state, queues, *_ = line.split()
    established = state == "01" and local.endswith(f":{port:04X}")
    return int(queues.partition(":")[2], 16) if established else 0


def test_without_authentication_it_listens_for_this_machine_only(
    tmp_path: pathlib.Path, database_url: str
) -> None:
    config = write_config(tmp_path, database_url, host_ip="0.0.0.0")
    process = start(config, tmp_path / "log")
    assert process.wait(PATIENCE) == 1
    assert "noauth_allow_remote" in (tmp_path / "log").read_text()


def test_a_port_in_use_is_said(tmp_path: pathlib.Path, database_url: str) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        config = write_config(tmp_path, database_url, port=listener.getsockname()[1])
        process = start(config, tmp_path / "log")
        assert process.wait(PATIENCE) == 1
    log = (tmp_path / "log").read_text()
    assert "Cannot serve" in log
    assert "Traceback" not in log


def test_a_paste_file_of_another_release_is_refused_with_a_sentence(
    tmp_path: pathlib.Path, database_url: str
) -> None:
    (tmp_path / "api-paste.ini").write_text("[pipeline:main]\npipeline = request_id api_v2\n")
    process = start(write_config(tmp_path, database_url), tmp_path / "log")
    assert process.wait(PATIENCE) == 1
    log = (tmp_path / "log").read_text()
    assert f"The paste file {tmp_path / 'api-paste.ini'} cannot be used" in log
    assert "Traceback" not in log


def test_without_a_certificate_https_is_refused(tmp_path: pathlib.Path, database_url: str) -> None:
    process = start(write_config(tmp_path, database_url, enable_ssl_api=True), tmp_path / "log")
    assert process.wait(PATIENCE) == 1
    assert "[api] enable_ssl_api needs [ssl] cert_file" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("way", ["argument", "folder", "files"])
def test_the_wsgi_module_finds_its_configuration(config: pathlib.Path, way: str) -> None:
    code = (
        "import webob; from cyborg.wsgi.api import application;"
        "request = webob.Request.blank('/v2/devices', {'REMOTE_ADDR': '127.0.0.1'});"
        "print(request.get_response(application).text)"
    )
    arguments = ["--config-file", str(config)] if way == "argument" else ["--unrelated", "x"]
    environ = {
        "argument": {},
        "folder": {"OS_CYBORG_CONFIG_DIR": str(config.parent)},
        "files": {"OS_CYBORG_CONFIG_FILES": f"{config};"},
    }[way]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        timeout=PATIENCE,
        check=True,
    )
    # The log comes first: nothing says how many threads this server has.
    assert json.loads(done.stdout.splitlines()[-1]) == {"devices": []}
