# SPDX-License-Identifier: Apache-2.0
"""Sessions of keystoneauth, in the API with places for those who wait. Loads no openstacksdk."""

from __future__ import annotations

import contextlib
from typing import Any

import requests
from keystoneauth1 import session as ka_session
from oslo_context import context as oslo_context

from cyborg.common import faster
from cyborg.peers import answers

#: TCP connections to a service that are kept. More than 10, the default of requests, are used at
#: the same time by a busy conductor: each one above would be closed after its call, with a WARNING.
_KEPT = 100


class _Session(requests.Session):
    """Takes no password from ``~/.netrc``, since what a service may do is said in its options."""

    def __init__(self, group: str, places: answers.Places | None) -> None:
        super().__init__()
        self.auth = _as_it_is
        self._group = group
        self._places = places
        faster.read_environment_once(self)

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send one request, in the API as one of those for which there is a place."""
        with self._place():
            return super().send(request, **options)

    def _place(self) -> contextlib.AbstractContextManager[None]:
        if self._places:
            # Nobody knows yet whose request it is.
            return self._places.take(self._group, None)
        caller: Any = oslo_context.get_current()
        places = getattr(caller, "places", None)
        return places.take(self._group, caller.project_id) if places else contextlib.nullcontext()


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """The credentials of a request: those that keystoneauth has given it."""
    return request


def new(group: str, places: answers.Places | None = None) -> requests.Session:
    """A session as keystoneauth makes it, but with a connection to keep for each thread.

    In the API each request takes one of these places, else one of its caller's.
    """
    session = _Session(group, places)
    for scheme in list(session.adapters):
        session.mount(scheme, ka_session.TCPKeepAliveAdapter(pool_maxsize=_KEPT))
    return session
