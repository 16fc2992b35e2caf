# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that gives the answers which a real Ironic gave to ``tools/ironic``."""

from __future__ import annotations

import copy
import http.server
import json
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg

_ANSWERS = pathlib.Path(__file__).parent / "data/ironic/answers.json"


class Ironic:
    """Serves ``answers``, by path and marker; 404 for others, and ``status`` for those in it."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = json.loads(_ANSWERS.read_text())
        self.status: dict[str, int] = {}
        self.versions: set[str | None] = set()
        ironic = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                ironic.versions.add(self.headers["X-OpenStack-Ironic-API-Version"])
                status, body = ironic.answer(self.path)
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Tests read what was imported, not a log."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def answer(self, path: str) -> tuple[int, Any]:
        """The status and the body for a path with its query."""
        plain, _, query = path.removeprefix("/v1").partition("?")
        # There are two pages, whatever is deleted of the first one.
        is_second = "marker=" in query
        key = next(each for each in self.answers if "marker=" in each) if is_second else plain
        if key in self.status:
            return self.status[key], {"error_message": "No."}
        one = plain.removeprefix("/nodes/")
        found = self.answers.get(key) or next(
            (node for node in self.nodes if one in {node["uuid"], node["name"]}), None
        )
        return (200, found) if found is not None else (404, {"error_message": "No such thing."})

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """Every node, on whatever page."""
        pages = [page for path, page in self.answers.items() if not path.endswith("/inventory")]
        return [node for page in pages for node in page["nodes"]]

    def uuid(self, name: str) -> str:
        """The UUID of a node."""
        return str(next(node["uuid"] for node in self.nodes if node["name"] == name))

    def inventory(self, name: str) -> dict[str, Any]:
        """The inventory of a node, to be changed."""
        found: dict[str, Any] = self.answers[f"/nodes/{self.uuid(name)}/inventory"]
        return found

    def delete(self, name: str) -> None:
        """Have no such node any more."""
        uuid = self.uuid(name)
        self.answers.pop(f"/nodes/{uuid}/inventory", None)
        for page in copy.copy(self.answers).values():
            if "nodes" in page:
                page["nodes"] = [node for node in page["nodes"] if node["uuid"] != uuid]

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def ironic(conf: cfg.ConfigOpts) -> Iterator[Ironic]:
    """An Ironic that the configuration names."""
    server = Ironic()
    conf.set_override("auth_type", "none", group="ironic")
    conf.set_override("endpoint_override", server.url, group="ironic")
    yield server
    server.close()
