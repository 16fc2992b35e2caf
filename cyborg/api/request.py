# SPDX-License-Identifier: Apache-2.0
"""The request as controllers see it, and the hook that fills it in and maps what goes wrong."""

from __future__ import annotations

import threading
from typing import Any

import pecan
import webob
from oslo_config import cfg
from pecan import hooks
from webob import exc as webob_exc

from cyborg import context, policy
from cyborg.api import faults, guard, versions


class Request(pecan.Request):
    """One request together with who makes it, at which microversion, and where we are mounted."""

    caller: context.RequestContext
    conf: cfg.ConfigOpts
    version: versions.Version
    #: Items on the longest page of a list.
    max_limit: int
    #: Seconds for which a request waits until a deployable is programmed.
    program_wait: float
    #: Seconds for which a list of an instance's ARQs waits for their binds.
    bind_wait: float
    #: Of the requests that wait for binds; the other threads stay free for all others.
    bind_waiters: threading.Semaphore
    #: What links begin with, without a slash at the end.
    base_url: str
    #: Headers that the answer gets whatever it is.
    answer_headers: dict[str, str]

    def negotiate(self) -> None:
        """Settle the microversion.

        :raises NotAcceptable: the one asked for is not served
        """
        try:
            self.version = versions.requested(self.headers.get(versions.HEADER))
        except versions.VersionNotServed:
            self.answer_headers = dict(versions.RANGE_HEADERS)
            raise
        self.answer_headers = versions.headers(self.version)

    def data(self, name: str) -> Any:
        """The JSON document that the body is; ``name`` is what messages call it.

        :raises CyborgError: there is none, or it is not acceptable
        """
        body: guard.Body = self.environ[guard.ENVIRON_KEY]
        return body.data(name)


class RequestHook(hooks.PecanHook):
    """Prepares each request, and makes an answer of whatever is raised."""

    def __init__(self, conf: cfg.ConfigOpts, enforcer: policy.Enforcer) -> None:
        self._conf = conf
        self._enforcer = enforcer
        self._bind_waiters = threading.Semaphore(conf.api.api_workers // 2)

    def on_route(self, state: Any) -> None:
        """Before the request is routed."""
        request: Request = state.request
        request.answer_headers = {}
        request.conf = self._conf
        request.version = versions.MIN
        request.max_limit = self._conf.api.max_limit
        request.program_wait = self._conf.programming.answer_timeout
        request.bind_wait = self._conf.api.bind_wait
        request.bind_waiters = self._bind_waiters
        request.caller = context.from_environ(request.environ, self._enforcer)
        request.base_url = (self._conf.api.public_endpoint or request.application_url).rstrip("/")

    def on_error(self, state: Any, error: Exception) -> webob.Response:
        """When anything was raised."""
        request: Request = state.request
        if isinstance(error, webob_exc.HTTPException) and request.version < versions.REGULAR:
            request.answer_headers = {}
        return faults.response(error, request.environ, request.version)

    def after(self, state: Any) -> None:
        """When there is an answer."""
        state.response.headers.update(state.request.answer_headers)
        if not state.response.body:
            state.response.content_type = None
