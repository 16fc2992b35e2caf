# SPDX-License-Identifier: Apache-2.0
"""Where events end in tests: an HTTP server that answers as Nova's external events API does."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.parse
from typing import Any

from oslo_config import cfg


class NovaSink:
    """Receives ``POST /os-server-external-events`` and remembers the events, and who wanted them.

    ``answer`` is the code it gives each event; ``status``, where set, is the answer to the whole
    request instead. It shows and lists the ``servers``. Those ``hidden`` it only lists: they are of
    other projects, and its caller is no administrator. It lists none unless its caller
    ``sees_all``. Those ``deleted`` it lists if it is asked for deleted ones. About those ``silent``
    it says nothing. ``asked`` has the paths it was asked for.
    """

    def __init__(self) -> None:
        self.requests: list[list[dict[str, Any]]] = []
        self.request_ids: list[str | None] = []
        self.answer = 200
        self.status: int | None = None
        self.servers: set[str] = set()
        self.hidden: set[str] = set()
        self.deleted: set[str] = set()
        self.silent: set[str] = set()
        self.sees_all = True
        #: Names, in the order of a list, with extra specs; it lists two at once.
        self.flavors: dict[str, dict[str, str]] = {}
        self.asked: list[str] = []
        sink = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                # Last what tests wait for.
                sink.request_ids.append(self.headers["X-OpenStack-Request-ID"])
                sink.requests.append(body["events"])
                self._reply(*sink.reply(self.path, body["events"]))

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                sink.asked.append(path)
                if path.removeprefix("/servers/") in sink.silent:
                    self.close_connection = True
                    return
                self._reply(*sink.show(path, dict(urllib.parse.parse_qsl(query))))

            def _reply(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Tests read what arrived, not a log."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def reply(self, path: str, events: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        """Status and body of an answer."""
        if path != "/os-server-external-events":
            return 404, {}
        if self.status is not None:
            return self.status, {}
        status = 200 if self.answer == 200 else 207
        return status, {"events": [{**event, "code": self.answer} for event in events]}

    def show(self, path: str, query: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Status and body of an answer about servers."""
        if self.status is not None:
            return self.status, {}
        if path == "/servers":
            if not self.sees_all or query["all_tenants"] != "true":
                return 403, {"forbidden": {"code": 403}}
            known = self.deleted if "deleted" in query else self.servers | self.hidden
            return 200, {"servers": [{"id": uuid} for uuid in known & {query["uuid"]}]}
        if path == "/flavors/detail":
            names = list(self.flavors)
            first = names.index(query["marker"]) + 1 if "marker" in query else 0
            shown = [{"id": name, "name": name, "extra_specs": self.flavors[name]}
                     for name in names[first : first + 2]]  # fmt: skip
            links = {"flavors_links": [{"rel": "next"}]} if names[first + 2 :] else {}
            return 200, {"flavors": shown, **links}
        uuid = path.removeprefix("/servers/")
        if uuid in self.servers:
            return 200, {"server": {"id": uuid}}
        return 404, {"itemNotFound": {"code": 404, "message": f"Instance {uuid} was not found."}}

    @property
    def events(self) -> dict[str, str]:
        """The last status sent for each ARQ."""
        return {event["tag"]: event["status"] for sent in self.requests for event in sent}

    def configure(self, conf: cfg.ConfigOpts) -> None:
        """Point ``[nova]`` here."""
        conf.set_override("auth_type", "none", group="nova")
        conf.set_override("endpoint_override", self.url, group="nova")
        # Most tests bind without claiming anything in Placement.
        conf.set_override("allocation_audit_interval", 0, group="conductor")

    def stop(self) -> None:
        """Refuse every further connection."""
        self._server.shutdown()
        self._server.server_close()
