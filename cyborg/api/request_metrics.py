# SPDX-License-Identifier: Apache-2.0
"""Metrics of requests: how many there were, their answers, and how long they took.

This is the first middleware, so that it also counts requests that later ones refuse.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from cyborg import metrics

_ENVIRON_KEY = "cyborg.route"

#: The label for routes and methods that we do not have: a client may ask for anything.
OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMetrics:
    """WSGI middleware that counts the answers of the application behind it."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app
        metrics.begin_at_zero(metrics.BIND_SECONDS, *metrics.BIND_OUTCOMES)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        seen = {"route": OTHER, "status": "500"}

        def start(status: str, *rest: Any) -> Any:
            seen["status"] = status[:3]
            return start_response(status, *rest)

        # A mutable object, since some middleware passes on a copy of the environment.
        environ[_ENVIRON_KEY] = seen
        asked = environ["REQUEST_METHOD"]
        method = asked if asked in _METHODS else OTHER
        started = time.perf_counter()
        try:
            return self._app(environ, start)
        finally:
            took = time.perf_counter() - started
            metrics.count(metrics.API_SECONDS, took, method=method, route=seen["route"])
            metrics.count(metrics.API_REQUESTS, method=method, **seen)


def name_route(environ: Mapping[str, Any], template: str) -> None:
    """Set the request's route: its path with placeholders for the names of objects."""
    if _ENVIRON_KEY in environ:
        environ[_ENVIRON_KEY]["route"] = template
