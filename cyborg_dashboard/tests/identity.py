# SPDX-License-Identifier: Apache-2.0
"""What of Keystone a page asks beside the login: the limits of a project."""

from __future__ import annotations

import threading
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import webob
from cheroot import wsgi

from cyborg.tests import service

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


class Identity:
    """Limits, of which a test may make some."""

    def __init__(self) -> None:
        self.known: dict[str, list[dict[str, Any]]] = {"registered_limits": [], "limits": []}
        self._server = wsgi.Server(("127.0.0.1", 0), self._answer)
        self._server.prepare()
        self.url = f"http://127.0.0.1:{self._server.bind_addr[1]}/identity"

    def limit(
        self, name: str, most: int, *, default: bool = False, project: str = service.USER_PROJECT
    ) -> None:
        """Set the limit of a project, or that of all."""
        row = {"resource_name": name, "region_id": None}
        if default:
            self.known["registered_limits"].append(row | {"default_limit": most})
        else:
            self.known["limits"].append(row | {"resource_limit": most, "project_id": project})

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        kind = environ["PATH_INFO"].rpartition("/")[2]
        asked = dict(urllib.parse.parse_qsl(environ["QUERY_STRING"]))
        if kind not in self.known or asked.pop("service_id") != "accelerator-id":
            return webob.Response(status=404, json={"error": {"message": "no"}})(
                environ, start_response
            )
        # An administrator is shown the limits of all projects, if it asks for no other.
        rows = [row for row in self.known[kind] if asked.items() <= row.items()]
        return webob.Response(json={kind: rows})(environ, start_response)


@pytest.fixture
def identity() -> Iterator[Identity]:
    """A Keystone without limits."""
    one = Identity()
    thread = threading.Thread(target=one._server.serve)
    thread.start()
    yield one
    one._server.stop()
    thread.join()
