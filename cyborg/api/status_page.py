# SPDX-License-Identifier: Apache-2.0
"""The status page: static files for browsers, beside an API whose answers stay as they are.

The page reads the API like any client, with the rights of its reader.
"""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import webob
from oslo_config import cfg

#: The files, which the page finds beside itself: ``/status/main.js`` from ``/``.
_FOLDER = pathlib.Path(__file__).with_name("status_page_files")
_PLACE = "/status/"
_INDEX = "index.html"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_OFFERS = ("application/json", "text/html")

_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class _StaticFile(NamedTuple):
    """One of the files, as it is sent."""

    content: bytes
    content_type: str
    etag: str


class StatusPage:
    """WSGI middleware that answers a browser at ``/``, and below ``/status/``; passes on all else.

    Clients that do not prefer HTML to JSON, and all other paths and methods, reach the API. The
    URL has been checked.
    """

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app
        self._files = _read()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = webob.Request(environ)
        name = _wanted(request)
        if name is None or name not in self._files:
            return self._app(environ, start_response)
        if not request.path_info:
            # The names of the files are relative, so that a proxy may serve us below any path.
            moved = webob.Response(status=302, location=f"{request.application_url}/")
            return moved(environ, start_response)
        file = self._files[name]
        answer = webob.Response(
            file.content, content_type=file.content_type, charset="utf-8", conditional_response=True
        )
        answer.headers.update(_HEADERS.items())
        answer.etag = file.etag
        return answer(environ, start_response)


def is_wanted(conf: cfg.ConfigOpts) -> bool:
    """True if the page is to be served: never with Keystone, whose tokens a browser has not."""
    return bool(conf.api.status_page) and conf.api.auth_strategy != "keystone"


def _read() -> Mapping[str, _StaticFile]:
    files = {}
    for path in _FOLDER.iterdir():
        if path.suffix in _TYPES:
            content = path.read_bytes()
            etag = hashlib.sha256(content).hexdigest()[:32]
            files[path.name] = _StaticFile(content, _TYPES[path.suffix], etag)
    return files


def _wanted(request: webob.Request) -> str | None:
    """The name of the file that is asked for, which we need not have."""
    if request.method != "GET":
        return None
    path = str(request.path_info)
    if path.startswith(_PLACE):
        return path.removeprefix(_PLACE)
    if path in {"", "/"}:
        offered = request.accept.acceptable_offers(_OFFERS)
        return _INDEX if offered and offered[0][0] == "text/html" else None
    return None
