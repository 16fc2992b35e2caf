# SPDX-License-Identifier: Apache-2.0
"""The API behind nginx, as the installation guide puts it there: its own file, its own unit.

Only addresses, names and the number of workers are others.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pytest
import requests
import trustme

from cyborg.tests import servers
from cyborg.tests.personas import Personas
from cyborg.tests.ports import free_port
from cyborg.tests.service import until
from cyborg.tests.standalone_site import TIMEOUT

pytestmark = pytest.mark.slow

PAGE = servers.REPOSITORY / "doc" / "source" / "install" / "nginx.conf"
UNIT = servers.REPOSITORY / "etc" / "systemd" / "cyborg-api.service"
#: Where the API of the guide listens.
PLACE = "127.0.0.1:6666"
#: Clients on other machines: what is sent from here does not come from 127.0.0.1.
ELSEWHERE, FAR = "127.0.0.2", "127.0.0.3"
#: What a client may say of itself and of the proxies before it.
FALSE = {
    "X-Forwarded-For": "203.0.113.9",
    "X-Forwarded-Proto": "http",
    "X-Forwarded-Host": "evil.example",
    "X-Forwarded-Prefix": "/evil",
    "Forwarded": "for=203.0.113.9;host=evil.example;proto=http",
    "SCRIPT_NAME": "/evil",
}
#: Ways to ask how the API is, of which at least the first three are some.
CHECKS = (
    *("/healthcheck", "/healthcheck/", "/healthcheck//", "//healthcheck", "/healthcheck?x=/.."),
    *("/healthcheck#/x", "/%68ealthcheck", "/healthcheck%2F", "/healthcheck%2f%2F"),
    *("/v2/../healthcheck", "/v2/%2e%2e/healthcheck", "/healthcheck%0A", "/healthcheck/."),
    "http://localhost/healthcheck",
)
PROFILE = b'[{"name": "p", "groups": [{"resources:FPGA": "1"}]}]'
#: All that nginx needs around the page's file, which is for the level of "http".
AROUND = """
daemon off;
worker_processes 1;
user {user};
pid {folder}/pid;
error_log stderr;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/page.conf;
}}
"""
CONFIGURATION = """
[DEFAULT]
transport_url = rabbit://127.0.0.1:1/
[database]
connection = {database}
[api]
port = {port}
audit = true
threads = 2
[audit_middleware_notifications]
use_oslo_messaging = false
[oslo_middleware]
enable_proxy_headers_parsing = true
[keystone_authtoken]
auth_type = password
auth_url = {keystone.url}
www_authenticate_uri = {keystone.url}
username = {keystone.service_user}
password = {keystone.password}
user_domain_id = default
project_name = {keystone.service_project}
project_domain_id = default
"""


def changed(text: str, *changes: tuple[str, str]) -> str:
    """The text with other words, each of which it must have."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


Body = bytes | list[bytes] | None


@dataclass(frozen=True, slots=True)
class Answer:
    """All that came of a request."""

    status: int
    headers: http.client.HTTPMessage
    text: str


class Edge:
    """A proxy for clients, and an API of which only this machine knows."""

    def __init__(self, folder: pathlib.Path, configuration: str) -> None:
        self.folder = folder
        #: Of the proxy, and of the API.
        self.port, self.behind = free_port(), free_port()
        self.url = f"https://localhost:{self.port}"
        authority, own = trustme.CA(), folder / "controller.pem"
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(own)
        self.authority = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        (folder / "cyborg.conf").write_text(configuration.format(port=self.behind))
        self._processes = contextlib.ExitStack()
        self._api: subprocess.Popen[bytes] | None = None

    def start_proxy(self, *changes: tuple[str, str]) -> None:
        """nginx with the page's file; ``changes`` are made besides."""
        own = str(self.folder / "controller.pem")
        page = changed(
            PAGE.read_text(),
            ("listen 10.0.0.11:6666", f"listen 127.0.0.1:{self.port}"),
            ("server_name controller", "server_name localhost"),
            ("/etc/nginx/controller.pem", own),
            ("/etc/nginx/controller.key", own),
            (f"proxy_pass http://{PLACE};", f"proxy_pass http://127.0.0.1:{self.behind};"),
            *changes,
        )
        (self.folder / "page.conf").write_text(page)
        # Otherwise its workers are of a user who may not write here.
        user = f"{self.folder.owner()} {grp.getgrgid(os.getegid()).gr_name}"
        (self.folder / "nginx.conf").write_text(AROUND.format(folder=self.folder, user=user))
        words = ["-e", "stderr", "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")]
        proxy = self._run("nginx", [_nginx(), *words])
        self._await("nginx", proxy, self.port)

    def start_api(self) -> None:
        """The API as its unit starts it, but with fewer workers and threads."""
        found = re.search(r"^ExecStart=/usr/local/bin/(.+)$", UNIT.read_text(), re.MULTILINE)
        assert found
        fewer = ("--workers 4", "--workers 1"), ("--threads 8", "--threads 2")
        self._start_api(changed(found[1], (PLACE, f"127.0.0.1:{self.behind}"), *fewer))

    def start_built_in_server(self) -> None:
        """The API as ``cyborg-api`` serves it."""
        self._start_api(f"cyborg-api --config-file {self.folder}/cyborg.conf")

    def _start_api(self, command: str) -> None:
        program, *words = command.split()
        path = str(pathlib.Path(sys.executable).with_name(program))
        self._api = self._run("api", [path, *words], OS_CYBORG_CONFIG_DIR=str(self.folder))
        self._await("api", self._api, self.behind)

    def kill_api(self) -> None:
        """End it in the midst of its work."""
        assert self._api is not None
        _end(self._api)

    def stop(self) -> None:
        self._processes.close()

    def logs(self) -> str:
        """What both have said."""
        return "\n".join(log.read_text() for log in sorted(self.folder.glob("*.log")))

    def _run(self, name: str, words: list[str], **variables: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            environ = {**os.environ, **variables}
            # A group of its own, to end its workers too.
            started = subprocess.Popen(
                words, stdout=log, stderr=log, env=environ, start_new_session=True
            )
        self._processes.callback(_end, started)
        return started

    def _await(self, name: str, process: subprocess.Popen[bytes], port: int) -> None:
        def listens() -> bool:
            assert process.poll() is None, f"{name} has ended:\n{self.logs()}"
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", port)) == 0

        until(listens)

    def connect(self, source: str = "127.0.0.1", sent: bytes = b"") -> ssl.SSLSocket:
        """A connection of a client there, which has sent that."""
        plain = socket.create_connection(("127.0.0.1", self.port), TIMEOUT, (source, 0))
        context = ssl.create_default_context(cafile=self.authority)
        one = context.wrap_socket(plain, server_hostname="localhost")
        one.sendall(sent)
        return one

    def ask(
        self,
        method: str,
        path: str,
        body: Body = None,
        *,
        source: str = "127.0.0.1",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Answer:
        """What comes to a client there. Its path stays as it is; a list is sent in chunks."""
        with self.connect(source) as one:
            connection = http.client.HTTPConnection("localhost", self.port)
            connection.sock = one
            with contextlib.suppress(ConnectionError):
                # Who refuses a body need not take all of it.
                connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read().decode())


def _nginx() -> str:
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    return program or servers.end_without("nginx is not installed; run: apt-get install nginx")


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


@pytest.fixture
def edge(database, database_url, keystone, tmp_path) -> Iterator[Edge]:
    folder = tmp_path / "edge"
    folder.mkdir()
    configuration = CONFIGURATION.format(database=database_url, keystone=keystone, port="{port}")
    one = Edge(folder, configuration)
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture
def admin(personas: Personas) -> dict[str, str]:
    """The headers of an administrator."""
    return {"X-Auth-Token": personas.token("admin"), "Content-Type": "application/json"}


def test_clients_are_served_through_the_page_and_the_unit(edge, admin, conf) -> None:
    edge.start_proxy()
    assert_clients_are_told_to_come_back(edge, admin)
    edge.start_api()
    assert_clients_come_by_tls_and_only_by_the_proxy(edge, admin)
    assert_nothing_said_of_proxies_is_believed(edge, admin)
    most = conf.api.max_request_body_size
    fits, large = b" " * most, b" " * (most + 1)
    for body in (fits, [fits]):
        # The API has looked at it.
        assert edge.ask("POST", "/v2/device_profiles", body, headers=admin).status == 400
    for body in (large, [large], [fits, b" "]):
        answer = edge.ask("POST", "/v2/device_profiles", body, headers=admin)
        assert (answer.status, "nginx" in answer.text) == (413, True)
    assert_how_the_api_is_it_tells_to_this_machine_only(edge)
    assert_slow_clients_stop_nobody_and_have_a_bound(edge, admin)
    edge.kill_api()
    assert_clients_are_told_to_come_back(edge, admin)
    edge.start_api()
    assert edge.ask("GET", "/v2/accelerator_requests", headers=admin).status == 200


def assert_clients_are_told_to_come_back(edge: Edge, admin: dict[str, str]) -> None:
    for method in ("GET", "POST", "PATCH", "DELETE"):
        for path in ("/v2/accelerator_requests", "/healthcheck"):
            answer = edge.ask(method, path, b"{}", headers=admin)
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


def assert_clients_come_by_tls_and_only_by_the_proxy(edge: Edge, admin: dict[str, str]) -> None:
    with edge.connect() as one:
        assert one.version() == "TLSv1.3"
    assert edge.ask("GET", "/v2/devices").status == 401
    assert edge.ask("GET", "/v2/devices", headers=admin).status == 200
    plain = requests.get(f"http://localhost:{edge.port}/", timeout=TIMEOUT)
    assert (plain.status_code, "HTTPS port" in plain.text) == (400, True)
    with socket.socket() as other:
        # Others would have to come to another address of this machine.
        assert other.connect_ex((ELSEWHERE, edge.behind)) == errno.ECONNREFUSED


def test_the_built_in_server_is_served_by_it_too(edge: Edge, admin: dict[str, str]) -> None:
    edge.start_proxy()
    edge.start_built_in_server()
    assert edge.ask("POST", "/v2/device_profiles", PROFILE, headers=admin).status == 201
    assert edge.ask("GET", "/v2/device_profiles", headers=admin | FALSE).status == 200


def assert_nothing_said_of_proxies_is_believed(edge: Edge, admin: dict[str, str]) -> None:
    (version,) = json.loads(edge.ask("GET", "/", headers=FALSE).text)["versions"]
    assert version["links"][0]["href"] == f"{edge.url}/v2"
    made = edge.ask(
        "POST", "/v2/device_profiles", PROFILE, source=ELSEWHERE, headers=admin | FALSE
    )
    assert (made.status, made.headers["Location"]) == (201, None)
    audited = (edge.folder / "api.log").read_text()
    assert f"'address': '{ELSEWHERE}'" in audited
    assert "203.0.113.9" not in audited


def test_an_api_without_authentication_is_served_to_nobody(edge: Edge) -> None:
    file = edge.folder / "cyborg.conf"
    file.write_text(changed(file.read_text(), ("[api]", "[api]\nauth_strategy = noauth")))
    edge.start_proxy()
    edge.start_api()
    answer = edge.ask("GET", "/v2/devices", headers={"Host": "localhost"})
    assert (answer.status, "without a proxy" in answer.text) == (403, True)


def assert_how_the_api_is_it_tells_to_this_machine_only(edge: Edge) -> None:
    here = [edge.ask("GET", path) for path in CHECKS]
    assert [answer.status for answer in here[:3]] == [503] * 3
    assert all("broker does not answer" in answer.text for answer in here[:3])
    elsewhere = [edge.ask("GET", path, source=ELSEWHERE) for path in CHECKS]
    assert [answer.status for answer in elsewhere[:3]] == [403] * 3
    assert not any("broker" in answer.text for answer in elsewhere)


def assert_slow_clients_stop_nobody_and_have_a_bound(edge: Edge, admin: dict[str, str]) -> None:
    head = b"POST /v2/device_profiles HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n"
    # Otherwise it would be answered without its body.
    head += b"".join(b"%b: %b\r\n" % (name.encode(), admin[name].encode()) for name in admin)
    with contextlib.ExitStack() as stack:
        # More than the API has threads; none of them holds one.
        slow = [stack.enter_context(edge.connect(ELSEWHERE, head)) for _ in range(20)]
        stack.enter_context(_dripping(slow))
        bodies = head + b"\r\n[ "
        slow = [stack.enter_context(edge.connect(FAR, bodies)) for _ in range(100)]
        stack.enter_context(_dripping(slow))
        unread = b"GET /v2/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(20):
            stack.enter_context(edge.connect(ELSEWHERE, unread * 5))
        for _ in range(5):
            assert edge.ask("GET", "/v2/devices", headers=admin).status == 200
        # Whose requests are not whole may have no more of them.
        until(lambda: edge.ask("GET", "/v2/devices", source=FAR, headers=admin).status == 503)


@contextlib.contextmanager
def _dripping(clients: list[ssl.SSLSocket]) -> Iterator[None]:
    """While the block runs, each of them sends a byte now and then."""
    end = threading.Event()

    def drip() -> None:
        while not end.wait(0.5):
            for one in clients:
                with contextlib.suppress(OSError):
                    one.send(b"x")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    yield
    end.set()
    thread.join()


def test_requests_of_one_address_are_bounded_in_time(edge: Edge, admin: dict[str, str]) -> None:
    edge.start_api()
    # As the page has it, but for the numbers, which nobody could reach for sure.
    edge.start_proxy(("rate=100r/s", "rate=1r/m"), (" burst=200", ""))
    assert edge.ask("GET", "/v2/devices", headers=admin).status == 200
    assert edge.ask("GET", "/v2/devices", headers=admin).status == 503
    assert edge.ask("GET", "/v2/devices", source=ELSEWHERE, headers=admin).status == 200
