# SPDX-License-Identifier: Apache-2.0
"""``openstack accelerator`` with a catalogue whose accelerator API does not answer as one."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cyborg.tests.openstack_command import OpenStack
from cyborg.tests.ports import free_port

pytestmark = pytest.mark.usefixtures("quiet_openstack")

#: One command for each microversion that commands need.
COMMANDS = (
    *("service list", "operation list", "allocation list", "function pool list", "history list"),
    *("usage list", "host show compute-1", "host key list compute-1", "attach handle list"),
    *("device set fpga --disable", "device delete abd631e7-29c5-4041-a790-fb783db48ec8"),
    *("device profile candidates fpga", "device attribute create fpga CUSTOM_A b"),
    "arq release abd631e7-29c5-4041-a790-fb783db48ec8",
)


class _Keystone(http.server.BaseHTTPRequestHandler):
    """Gives everybody a token, with a catalogue of the accelerator API alone."""

    server: Any

    def do_GET(self) -> None:
        link = {"rel": "self", "href": f"http://{self.headers['Host']}/v3/"}
        version = {"id": "v3.14", "status": "stable", "links": [link], "media-types": []}
        self._answer(200, {"version": version})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        endpoint = {
            "id": "1", "region": "one", "region_id": "one", "interface": "public",
            "url": self.server.endpoint,
        }
        token = {
            "methods": ["password"],
            "user": {"id": "u", "name": "u", "domain": {"id": "default", "name": "Default"}},
            "project": {"id": "p", "name": "p", "domain": {"id": "default", "name": "Default"}},
            "roles": [{"id": "r", "name": "admin"}],
            "expires_at": "2999-01-01T00:00:00.000000Z",
            "issued_at": "2026-01-01T00:00:00.000000Z",
            "catalog": [{"id": "c", "type": "accelerator", "name": "c", "endpoints": [endpoint]}],
        }
        self._answer(201, {"token": token})

    def _answer(self, code: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Subject-Token", "t")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing among what the command says."""


@contextlib.contextmanager
def serve(handler: type[http.server.BaseHTTPRequestHandler], endpoint: str = "") -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.endpoint = endpoint  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Cloud(OpenStack):
    """The command with that Keystone."""

    def options(self) -> list[str]:
        return [
            *("--os-auth-type", "password", "--os-auth-url", f"{self.endpoint}/v3"),
            *("--os-username", "u", "--os-password", "p", "--os-user-domain-id", "default"),
            *("--os-project-name", "p", "--os-project-domain-id", "default"),
        ]


def test_a_server_that_is_down_is_not_called_old() -> None:
    endpoint = f"http://127.0.0.1:{free_port()}/v2"
    with serve(_Keystone, endpoint) as keystone:
        for words in COMMANDS:
            told = _Cloud(endpoint=keystone).refused(*words.split())
            assert f"Unable to establish connection to {endpoint}" in told, words
            assert "microversion" not in told


@pytest.mark.parametrize(
    ("code", "told"), [(502, "(HTTP 502"), (404, "(HTTP 404"), (200, "is not the accelerator API")]
)
def test_what_is_no_accelerator_api_is_not_called_old(code: int, told: str) -> None:
    class Proxy(_Keystone):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", "13")
            self.end_headers()
            self.wfile.write(b"<html></html>")

    with serve(Proxy) as proxy, serve(_Keystone, f"{proxy}/v2") as keystone:
        found = _Cloud(endpoint=keystone).refused("service", "list")
    assert told in found
    assert "microversion" not in found
