# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of the API."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg

from cyborg.api import app


@pytest.fixture
def call(conf: cfg.ConfigOpts, database: sa.Engine) -> Callable[..., webob.Response]:
    """``call(method, url, body)`` is what an administrator is answered; None is no microversion."""
    conf.set_override("auth_strategy", "noauth", group="api")
    application = app.load(conf)

    def calling(
        method: str, url: str, body: Any = None, version: str | None = "latest", **environ: Any
    ) -> webob.Response:
        request = webob.Request.blank(url, environ, method=method)
        if version is not None:
            request.headers["OpenStack-API-Version"] = f"accelerator {version}"
        if body is not None:
            request.body = body if isinstance(body, bytes) else json.dumps(body).encode()
            request.content_type = environ.get("CONTENT_TYPE", "application/json")
        return request.get_response(application)

    return calling
