# SPDX-License-Identifier: Apache-2.0
"""The API under the WSGI servers of others: uWSGI and gunicorn, each with two processes."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import multiprocessing.connection
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent import futures

import pytest
import requests

from cyborg.db import models
from cyborg.tests import boots, hosts
from cyborg.tests.ports import free_port
from cyborg.tests.servers import REPOSITORY
from cyborg.tests.standalone_site import TIMEOUT, wait_for

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.slow]

UNIT = REPOSITORY / "etc" / "systemd" / "cyborg-api.service"
SOCKET = UNIT.with_suffix(".socket")
PAGE = REPOSITORY / "doc" / "source" / "install" / "production.rst"
MODULE = "cyborg.wsgi.api:application"
LAST = b"GET /v2/devices HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PROFILE = [{"name": "p", "groups": [{"resources:FPGA": "1"}]}]
FILES = "cyborg.conf;secret.conf"


def command(server: str, port: int) -> list[str]:
    """As the installation guide starts it."""
    program = str(pathlib.Path(sys.executable).with_name(server))
    place = f"127.0.0.1:{port}"
    if server == "gunicorn":
        return [program, "--bind", place, "--workers", "2", "--threads", "2", MODULE]
    # What the page about production has in the file of uWSGI. Tests have files of their own.
    (text,) = re.findall(r"^   \[uwsgi\]\n((?:   .*\n)+)", PAGE.read_text(), re.MULTILINE)
    lines = [line.strip() for line in text.splitlines()]
    options = dict(line.split(" = ", 1) for line in lines if not line.startswith("#"))
    options |= {"http-socket": place, "processes": "2", "threads": "2"}
    del options["pyargv"]
    parts = [[f"--{name}"] + [value] * (value != "true") for name, value in options.items()]
    return [program, *itertools.chain.from_iterable(parts)]


class Server:
    """One WSGI server as a process of its own."""

    def __init__(self, kind: str, folder: pathlib.Path, database_url: str) -> None:
        self._kind = kind
        self._folder = folder
        self._port = free_port()
        self._database_url = database_url
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}"
        self.write("https://first.example")

    def write(self, public_endpoint: str, more: str = "") -> None:
        """Two files, as operators have who keep the passwords apart."""
        (self._folder / "cyborg.conf").write_text(
            "[DEFAULT]\ntransport_url = rabbit://127.0.0.1:1/\n"
            f"[api]\nauth_strategy = noauth\npublic_endpoint = {public_endpoint}\nbind_wait = 3\n"
        )
        secret = f"[database]\nconnection = {self._database_url}\n{more}"
        (self._folder / "secret.conf").write_text(secret)

    def start(self, *arguments: str) -> None:
        """Start it and wait until it answers."""
        files = {"OS_CYBORG_CONFIG_DIR": str(self._folder), "OS_CYBORG_CONFIG_FILES": FILES}
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command(self._kind, self._port), *arguments],
                env=os.environ | ({} if "--pyargv" in arguments else files),
                stdout=log,
                stderr=log,
            )
        wait_for(self._kind, self.root)

    def root(self) -> str | None:
        """Where the root document says that the API is, if it is there already."""
        assert self._process is not None
        assert self._process.poll() is None, self.log
        try:
            answer = requests.get(self.url, timeout=TIMEOUT)
        except requests.ConnectionError:
            return None
        return str(answer.json()["versions"][0]["links"][0]["href"])

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), TIMEOUT)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(TIMEOUT)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(TIMEOUT)


@pytest.fixture
def make(tmp_path: pathlib.Path, database_url: str) -> Iterator[Callable[[str], Server]]:
    made: list[Server] = []

    def making(kind: str) -> Server:
        made.append(Server(kind, tmp_path, database_url))
        return made[-1]

    yield making
    for server in made:
        server.kill()


SMUGGLED = b"DELETE /v2/device_profiles/p HTTP/1.1\r\nHost: localhost\r\n\r\n"
CREATE = b"POST /v2/device_profiles HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        # The last of two options counts.
        (
            "uwsgi",
            ["--threads", "3", "--http-socket", "{path}"],
            "is 10, but uWSGI has 3 threads",
        ),
        ("gunicorn", ["--bind", "unix:{path}"], "is not set, so 10 threads"),
    ],
)
def test_the_api_is_served_as_by_its_own_server(make, kind, arguments, said, tmp_path, ctx) -> None:
    hosts.apply(hosts.card("a", prepares=True))
    instance, arqs, path = models.new_uuid(), boots.arqs(ctx), tmp_path / "socket"
    boots.bind(ctx, arqs, instance)
    server = make(kind)
    server.write("https://first.example", "[api]\nrequest_timeout = 3\n")
    server.start(*(each.format(path=path) for each in arguments))
    assert f"[api] threads {said}" in server.log
    assert_it_works(server)
    for size in (200_000, 5_000_000):
        assert_a_large_body_leaves_the_connection_of_use_or_closed(server, kind, size)
    assert_chunks_are_read_as_one_body_or_refused(server)
    for length in (b"Content-Length: 1000", b"Transfer-Encoding: chunked"):
        assert_a_body_in_drops_is_not_waited_for(server, length)
    assert_no_proxy_is_served(server, path)
    assert profiles(server) == ["p", "q"]
    assert_what_waits_is_answered_before_the_end(server, instance, arqs)


def profiles(server: Server) -> list[str]:
    """Those that were made over HTTP."""
    url = f"{server.url}/v2/device_profiles?name=p,q"
    found = requests.get(url, timeout=TIMEOUT).json()["device_profiles"]
    return [profile["name"] for profile in found]


def assert_it_works(server: Server) -> None:
    made = requests.post(f"{server.url}/v2/device_profiles", json=PROFILE, timeout=TIMEOUT)
    assert made.status_code == 201
    for _ in range(8):
        assert profiles(server) == ["p"]
    health = requests.get(f"{server.url}/healthcheck", timeout=TIMEOUT)
    assert health.status_code == 503
    assert "message broker does not answer" in health.text


def assert_a_large_body_leaves_the_connection_of_use_or_closed(
    server: Server, kind: str, size: int
) -> None:
    host = server.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=TIMEOUT)
    with contextlib.closing(connection):
        body = SMUGGLED * (size // len(SMUGGLED))
        with contextlib.suppress(ConnectionError):
            connection.request("POST", "/v2/device_profiles", body)
        answer = connection.getresponse() if connection.sock else None
        assert answer is None or answer.status == 413
        if answer and kind == "gunicorn" and size < 1_000_000:
            answer.read()
            connection.request("GET", "/v2/devices")
            assert connection.getresponse().status == 200
        elif connection.sock:
            with contextlib.suppress(ConnectionError):
                assert connection.sock.recv(1) == b""


def assert_chunks_are_read_as_one_body_or_refused(server: Server) -> None:
    text = json.dumps([PROFILE[0] | {"name": "q"}]).encode()
    made = requests.post(
        f"{server.url}/v2/device_profiles",
        data=iter([text[:5], text[5:]]),
        headers={"Content-Type": "application/json"},
        timeout=TIMEOUT,
    )
    assert made.status_code == 201
    chunk = b"%x\r\n%b\r\n" % (len(SMUGGLED), SMUGGLED)
    with server.connect() as one:
        with contextlib.suppress(ConnectionError):
            one.sendall(CREATE + b"Content-Type: application/json\r\n")
            one.sendall(b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 5000)
            one.sendall(b"0\r\n\r\n" + LAST)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := one.recv(65536):
                answer += part
    # After the 413 comes the answer to the last request, or the end.
    assert re.findall(rb"HTTP/1\.1 (\d{3}) ", answer) in ([b"413"], [b"413", b"200"])


def assert_a_body_in_drops_is_not_waited_for(server: Server, length: bytes) -> None:
    with server.connect() as one:
        one.sendall(b"%b%b\r\n\r\n" % (CREATE, length))
        for _ in range(150):
            one.sendall(b"9" if length.endswith(b"chunked") else b"x")
            if multiprocessing.connection.wait([one], 0.1):
                break
        assert re.match(rb"HTTP/1\.1 408 ", one.recv(65536))


def assert_no_proxy_is_served(server: Server, path: pathlib.Path) -> None:
    """There is no authentication."""
    for name in ("X-Forwarded-Proto", "Forwarded", "X-Real-IP", "Via"):
        headers = {name: "1.1 proxy"}
        answer = requests.get(f"{server.url}/v2/devices", headers=headers, timeout=TIMEOUT)
        assert (answer.status_code, "without a proxy" in answer.text) == (403, True)
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(TIMEOUT)
        one.connect(str(path))
        one.sendall(b"GET /v2/devices HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert one.recv(12).endswith(b" 403")


def assert_what_waits_is_answered_before_the_end(
    server: Server, instance: str, arqs: list[str]
) -> None:
    host = server.url.removeprefix("http://")
    with contextlib.closing(http.client.HTTPConnection(host, timeout=TIMEOUT)) as connection:
        connection.request("GET", f"/v2/accelerator_requests?instance={instance}")
        # The request must have reached a worker, which begins to wait then.
        assert connection.sock is not None
        assert not multiprocessing.connection.wait([connection.sock], 1)
        server.signal(signal.SIGTERM)
        answer = connection.getresponse()
        found = json.load(answer)
    assert answer.status == 200
    assert [(arq["uuid"], arq["state"]) for arq in found["arqs"]] == [(arqs[0], "BindStarted")]
    assert server.wait() == 0


def test_gunicorn_reads_the_file_again_on_sighup(make: Callable[[str], Server]) -> None:
    server = make("gunicorn")
    server.write("https://first.example", "[api]\nthreads = 2\n")
    server.start()
    assert server.root() == "https://first.example/v2"
    assert "[api] threads" not in server.log
    server.write("https://second.example")
    server.signal(signal.SIGHUP)
    wait_for("the new file", lambda: server.root() == "https://second.example/v2")


def test_uwsgi_hands_arguments_through(make, tmp_path) -> None:
    server = make("uwsgi")
    server.write("https://first.example", "[api]\nthreads = 2\n")
    files = [f"--config-file {tmp_path / name}" for name in FILES.split(";")]
    server.start("--pyargv", " ".join(files))
    assert server.root() == "https://first.example/v2"
    assert "[api] threads" not in server.log


def unit() -> list[str]:
    """The command of the API's unit, with fewer processes."""
    (line,) = re.findall(r"^ExecStart=/usr/local/bin/(.+)$", UNIT.read_text(), re.MULTILINE)
    server, *words = line.replace("--workers 4", "--workers 2").split()
    assert server == "gunicorn"
    return [str(pathlib.Path(sys.executable).with_name(server)), *words]


def activated(folder: pathlib.Path, listener: socket.socket) -> subprocess.Popen[bytes]:
    """gunicorn as systemd starts it, which holds its socket as ``cyborg-api.socket`` says."""
    # The socket is the first behind standard error, and meant for this process.
    script = f'exec 3<&{listener.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
    files = {"OS_CYBORG_CONFIG_DIR": str(folder), "OS_CYBORG_CONFIG_FILES": FILES}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            ["bash", "-c", script, "gunicorn", *unit()],
            env=os.environ | files,
            pass_fds=[listener.fileno()],
            stdout=log,
            stderr=log,
        )


def test_the_units_belong_together() -> None:
    listens = re.search(r"^ListenStream=(.+)$", SOCKET.read_text(), re.MULTILINE)
    assert listens is not None
    assert f"--bind {listens[1]} " in UNIT.read_text()
    for line in (f"Requires={SOCKET.name}", f"Also={SOCKET.name}"):
        assert line in UNIT.read_text().splitlines()


def test_no_request_is_reset_while_the_api_is_started_again(make, tmp_path, ctx, conf) -> None:
    hosts.apply(hosts.card("a", prepares=True))
    instance = models.new_uuid()
    boots.bind(ctx, boots.arqs(ctx), instance)
    make("gunicorn").write("https://first.example")
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v2"

        def ask(path: str) -> int:
            return requests.get(f"{url}{path}", timeout=TIMEOUT).status_code

        def stop(api: subprocess.Popen[bytes]) -> None:
            api.send_signal(signal.SIGTERM)
            assert api.wait(TIMEOUT) == 0, (tmp_path / "log").read_text()

        with futures.ThreadPoolExecutor() as pool:
            api = activated(tmp_path, listener)
            assert ask("/devices") == 200
            waits = pool.submit(ask, f"/accelerator_requests?instance={instance}")
            with pytest.raises(futures.TimeoutError):
                waits.result(1)
            stopping = pool.submit(stop, api)
            came_late = []
            while not stopping.done():
                came_late.append(pool.submit(ask, "/devices"))
                time.sleep(0.2)
            stopping.result()
            assert waits.result(TIMEOUT) == 200
            api = activated(tmp_path, listener)
            assert [each.result(TIMEOUT) for each in came_late] == [200] * len(came_late)
            assert len(came_late) > 2
        stop(api)
