# SPDX-License-Identifier: Apache-2.0
"""``cyborg-api`` and the WSGI module as processes of their own."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from cyborg.tests import crowd, forked, one_service
from cyborg.tests.one_service import PATIENCE, get
from cyborg.tests.ports import free_port
from cyborg.tests.standalone_site import wait_for

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.slow]

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


@pytest.fixture
def served(tmp_path, database_url) -> Iterator[tuple[one_service.Forked, int]]:
    """A running ``cyborg-api`` and its port."""
    port = free_port()
    config = write_config(tmp_path, database_url, port=port)
    process = one_service.Forked("cyborg-api", f"--config-file={config}", log=tmp_path / "log")

    def answers() -> bool:
        assert process.poll() is None, process.log.read_text()
        return get(port, "/") == 200

    wait_for("the API", answers)
    yield process, port
    process.kill()


def most_memory(folder: pathlib.Path) -> int:
    """Bytes of memory that a process has had at most since that was forgotten."""
    status = (folder / "status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return 1024 * int(found[1])


def test_wasteful_clients_take_little_from_the_others(served) -> None:
    process, port = served
    # The memory of the document, when it is made, is taken without a crowd, too.
    for path in ("/v2/devices", "/v2/openapi.json") * 10:
        assert get(port, path) == 200
    folder = pathlib.Path("/proc", str(process._process.pid))
    (folder / "clear_refs").write_text("5")
    before = most_memory(folder)
    with crowd.Crowd(port):
        answers = []
        end = time.monotonic() + 4
        while time.monotonic() < end:
            began = time.monotonic()
            answers.append((get(port, "/v2/devices"), time.monotonic() - began))
    assert {status for status, _ in answers} == {200}
    # One answer may be late on a machine that has other work.
    assert statistics.median(seconds for _, seconds in answers) < 1
    assert most_memory(folder) - before < 50_000_000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_when_what_is_under_way_is_answered(served, database, number) -> None:
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


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"host_ip": "0.0.0.0"}, "noauth_allow_remote"),
        ({"port": "{port}"}, "Cannot serve"),
        ({}, "The paste file {folder}/api-paste.ini cannot be used"),
        ({"enable_ssl_api": True}, "[api] enable_ssl_api needs [ssl] cert_file"),
    ],
)
def test_it_says_why_it_does_not_start(tmp_path, database_url, options, sentence) -> None:
    if not options:
        (tmp_path / "api-paste.ini").write_text("[pipeline:main]\npipeline = request_id api_v2\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = {name: str(value).format(port=port) for name, value in options.items()}
        config = write_config(tmp_path, database_url, **given)
        done = forked.run("cyborg-api", "--config-file", str(config))
    assert done.returncode == 1
    log = done.stdout + done.stderr
    assert sentence.format(folder=tmp_path) in log
    assert "Traceback" not in log


#: Prints what the module answers in each of the ways in which its configuration is given.
ASK = """
import json, os, sys, webob
from cyborg.api import app
for arguments, environ in json.loads(sys.argv.pop()):
    if os.fork() == 0:
        sys.argv[1:] = arguments
        os.environ.update(environ)
        from cyborg.wsgi.api import application
        request = webob.Request.blank("/v2/devices", {"REMOTE_ADDR": "127.0.0.1"})
        os.write(1, request.get_response(application).body + b"\\n")
        os._exit(0)
    assert os.wait()[1] == 0
"""


def test_the_wsgi_module_finds_its_configuration(tmp_path, database_url) -> None:
    config = write_config(tmp_path, database_url)
    ways: list[tuple[list[str], dict[str, str]]] = [
        (["--config-file", str(config)], {}),
        (["--unrelated", "x"], {"OS_CYBORG_CONFIG_DIR": str(config.parent)}),
        (["--unrelated", "x"], {"OS_CYBORG_CONFIG_FILES": f"{config};"}),
    ]
    command = [sys.executable, "-c", ASK, json.dumps(ways)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=PATIENCE, check=True)
    # There are lines of the log: nothing says how many threads this server has.
    found = [line for line in done.stdout.splitlines() if line.startswith(b"{")]
    assert [json.loads(line) for line in found] == [{"devices": []}] * len(ways)
