# SPDX-License-Identifier: Apache-2.0
"""The API at its newest microversion, without a server."""

from __future__ import annotations

import json
import re
from typing import Any

import webob
from oslo_config import cfg

from cyborg.api import app, versions


class Api:
    """The API at its newest microversion, mounted where the samples say."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        conf.set_override("public_endpoint", "https://cloud.example/accelerator", group="api")
        self._application = app.load(conf)

    def ask(
        self, method: str, path: str, body: Any = None, *, version: str = "latest", **more: str
    ) -> webob.Response:
        """The answer; ``more`` are headers, by their names in lower case."""
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        headers["OpenStack-API-Version"] = f"accelerator {version}"
        request = webob.Request.blank(
            "/accelerator" + path, method=method, headers=headers, base_url="https://cloud.example"
        )
        request.path_info_pop()
        if body is not None:
            request.content_type, request.body = "application/json", json.dumps(body).encode()
        return request.get_response(self._application)

    def call(self, method: str, path: str, body: Any = None, *, version: str = "latest") -> Any:
        answer = self.ask(method, path, body, version=version)
        assert answer.status_int < 300, answer.text
        return answer.json if answer.body else None


EVERY_VERSION = [versions.Version(2, minor) for minor in range(versions.MAX.minor + 1)]


def anonymous(route: str) -> str:
    """The route with nothing in its braces, since the pages name members as they like."""
    return re.sub(r"\{[^}]*\}", "{}", route)
