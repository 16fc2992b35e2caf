# SPDX-License-Identifier: Apache-2.0
"""The request as controllers see it, and the hook that fills it in and answers errors."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import webob
from oslo_config import cfg
from pecan import hooks
from webob import exc as webob_exc
from webob import request as webob_request

from cyborg.api import faults, request_body, versions
from cyborg.common import errors
from cyborg.peers import answers
from cyborg.policy import context
from cyborg.policy.enforcer import Enforcer


class Request(webob_request.BaseRequest):
    """One request with its caller, its microversion and the URL under which we are mounted.

    WebOb's base class: pecan's own looks at each access of an attribute whether the URL is UTF-8,
    which the request reader has done, and keeps attributes in the environment, for 7 % more.
    """

    caller: context.RequestContext
    conf: cfg.ConfigOpts
    version: versions.Version
    sent: request_body.RequestBody
    #: One permit for each request that may wait at a time, whatever for, so that half of the
    #: threads stay free. Those for programs, which wait longer, need one of ``program_places``
    #: too: with four threads or more they leave some to those for binds.
    wait_places: threading.Semaphore
    program_places: threading.Semaphore
    #: When it arrived, by the monotonic clock.
    begun: float
    #: What links begin with, without a slash at the end.
    base_url: str
    #: Headers of the answer, also if it is an error.
    answer_headers: dict[str, str]

    @property
    def params(self) -> Any:
        """The arguments for pecan; the body is none of them, and the request reader has it."""
        return self.GET

    @property
    def max_limit(self) -> int:
        """Items on the longest page of a list."""
        return cast(int, self.conf.api.max_limit)

    @property
    def bind_wait(self) -> float:
        """Seconds for which this request may still wait for binds and for the database."""
        return max(0.0, cast(float, self.conf.api.bind_wait) - time.monotonic() + self.begun)

    def negotiate(self) -> None:
        """Set the microversion to the one asked for.

        :raises NotAcceptable: it is not served
        """
        try:
            self.version = versions.requested(self.headers.get(versions.HEADER))
        except errors.NotAcceptable:
            self.answer_headers = dict(versions.RANGE_HEADERS)
            raise
        self.answer_headers = versions.headers(self.version)


@contextlib.contextmanager
def place(*kinds: threading.Semaphore) -> Iterator[bool]:
    """Take a place of each of these kinds until the block ends; give False if one has none."""
    with contextlib.ExitStack() as taken:
        for places in kinds:
            if not places.acquire(blocking=False):
                taken.close()
                yield False
                return
            taken.callback(places.release)
        yield True


class RequestHook(hooks.PecanHook):
    """Prepares each request, and turns exceptions into answers."""

    def __init__(self, conf: cfg.ConfigOpts, enforcer: Enforcer) -> None:
        self._conf = conf
        self._enforcer = enforcer
        threads = conf.api.threads
        self._wait_places = threading.Semaphore(threads // 2)
        self._program_places = threading.Semaphore(max(1, threads // 4))
        self._call_places = answers.Places(threads)

    def on_route(self, state: Any) -> None:
        """Before the request is routed."""
        request: Request = state.request
        request.answer_headers = {}
        request.conf = self._conf
        request.version = versions.MIN
        request.sent = request.environ[request_body.ENVIRON_KEY]
        request.begun = time.monotonic()
        request.wait_places = self._wait_places
        request.program_places = self._program_places
        request.caller = context.from_environ(request.environ, self._enforcer)
        request.caller.places = self._call_places
        request.base_url = (self._conf.api.public_endpoint or request.application_url).rstrip("/")

    def on_error(self, state: Any, error: Exception) -> webob.Response:
        """After an exception."""
        request: Request = state.request
        if isinstance(error, webob_exc.HTTPException) and request.version < versions.REGULAR:
            request.answer_headers = {}
        return faults.response(error, request.environ, request.version)

    def after(self, state: Any) -> None:
        """Before the answer is sent."""
        state.response.headers.update(state.request.answer_headers)
        if not state.response.body:
            state.response.content_type = None
