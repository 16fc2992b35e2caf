# SPDX-License-Identifier: Apache-2.0
"""What Prometheus is told of requests: how many, with which answers, and how long they took.

It is the first of the middleware, so that requests are counted that get no further.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from cyborg import metrics

_ENVIRON_KEY = "cyborg.route"

#: The label of what is no route or no method of ours: a client may ask for anything.
OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMetrics:
    """WSGI middleware that counts the answers of the application behind it."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        seen = {"route": OTHER, "status": "500"}

        def start(status: str, *rest: Any) -> Any:
            seen["status"] = status[:3]
            return start_response(status, *rest)

        # An object, since some middleware hands on a copy of the environment.
        environ[_ENVIRON_KEY] = seen
        asked = environ["REQUEST_METHOD"]
        method = asked if asked in _METHODS else OTHER
        started = time.perf_counter()
        try:
            return self._app(environ, start)
        finally:
            took = time.perf_counter() - started
            metrics.API_SECONDS.labels(method, seen["route"]).observe(took)
            metrics.API_REQUESTS.labels(method, seen["route"], seen["status"]).inc()


def name_route(environ: Mapping[str, Any], template: str) -> None:
    """Tell which route the request takes, as a path without any object's name in it."""
    if _ENVIRON_KEY in environ:
        environ[_ENVIRON_KEY]["route"] = template
