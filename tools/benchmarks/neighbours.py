# SPDX-License-Identifier: Apache-2.0
"""The real Placement and a receiver of Nova's events, for compare.py: one process beside Cyborg.

    neighbours.py FOLDER

Prints the two URLs as JSON, then a line for each request to Placement and for each event.
"""

from __future__ import annotations

import json
import pathlib
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

import webob
from cheroot import wsgi

from cyborg.placement import local

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_VERSION = {"id": "v2.1", "status": "CURRENT", "version": "2.96", "min_version": "2.1"}


def say(line: str) -> None:
    """Write one line whole: many threads do."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def counted(name: str, app: WSGIApplication) -> WSGIApplication:
    """``app``, of which every request that a service sends is told."""

    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if "HTTP_X_BENCHMARK" not in environ:
            say(name)
        return app(environ, start_response)

    return serve


def nova(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Accept every event; show the version that clients look for."""
    request = webob.Request(environ)
    body = {"version": {**_VERSION, "links": [{"rel": "self", "href": request.host_url}]}}
    if request.method == "POST":
        events = request.json["events"]
        body = {"events": [{**event, "code": 200} for event in events]}
        for event in events:
            say(f"event {event['tag']} {event['status']}")
    return webob.Response(json=body)(environ, start_response)


def main() -> None:
    """Serve both until the process is ended."""
    servers = [
        wsgi.Server(("127.0.0.1", 0), app, numthreads=16)
        for app in (
            counted("placement", local.load_app(pathlib.Path(sys.argv[1]))),
            counted("nova", nova),
        )
    ]
    for server in servers:
        server.prepare()
        threading.Thread(target=server.serve, daemon=True).start()
    urls = [f"http://127.0.0.1:{server.bind_addr[1]}" for server in servers]
    say(json.dumps(urls))
    threading.Event().wait()


if __name__ == "__main__":
    main()
