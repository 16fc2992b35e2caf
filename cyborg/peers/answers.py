# SPDX-License-Identifier: Apache-2.0
"""Other services that hang, drip or lie: what a call to one of them may cost, and how it is read.

A call has a deadline for the whole of it, however its answer arrives. The size of an answer is
bounded. An answer that is compressed or leads elsewhere is refused: Cyborg asks for neither. In the
API each call takes a place, so that a service that hangs leaves threads for other requests.
"""

from __future__ import annotations

import collections
import contextlib
import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import requests
from keystoneauth1 import exceptions as ka_exc
from requests import adapters
from urllib3 import connection

from cyborg.common import errors

#: Bytes of an answer: of a thousand candidates on large hosts Placement sends some 20 MB.
_LARGEST = 32 * 1024 * 1024
#: Seconds for a call of which nothing else says how long it may take, and for all of one request.
LONGEST = 30.0
#: Seconds that each byte of an image adds to the time of its download: 64 KiB a second suffice.
_OF_BYTE = 1 / 65536
#: Seconds that a request waits for a place since the last answer of a service: as many requests as
#: there are places, and those that would take the last threads.
_PATIENCE, _HASTE = 5.0, 2.0
#: Values of an answer: an honest one of the largest size has half as many.
_VALUES_MAX = 3_000_000
_REDIRECTS = frozenset({301, 302, 303, 305, 307, 308})
#: Larger ones are no amounts, and fit into no column.
_NUMBERS = 2**53
#: What fails where an answer is read that is not as the API of the service says.
ODD = (LookupError, TypeError, ValueError, AttributeError, RecursionError, NotImplementedError)


class Unusable(errors.ServiceUnavailable, ka_exc.ClientException):
    """A service's answer cannot be used, or there is no time or place to ask it."""


@dataclass(slots=True)
class _Bounds:
    """The rest of a call: until when, for how many bytes and values, and the seconds of a byte."""

    until: float
    left: float
    values: float
    each: float


_now = threading.local()


@contextlib.contextmanager
def within(seconds: float | None, *, streams: bool = False) -> Iterator[float]:
    """Let the calls in the block end within so many seconds and what is left; how many that are.

    An answer that ``streams`` may have any size, and takes longer the larger it is.

    :raises Unusable: none are left
    """
    before: _Bounds | None = getattr(_now, "bounds", None)
    until = time.monotonic() + (LONGEST if seconds is None else seconds)
    until = min(until, before.until if before else until)
    left = until - time.monotonic()
    if left <= 0:
        raise Unusable("Another service has not answered in time.")
    size, values = (float("inf"), float("inf")) if streams else (_LARGEST, _VALUES_MAX)
    _now.bounds = _Bounds(until, size, values, _OF_BYTE * streams)
    try:
        yield left
    finally:
        _now.bounds = before


class _Stream(socket.SocketIO):
    """The bytes that arrive on a socket, as far as the bounds of the call permit."""

    bounds: _Bounds
    _sock: socket.socket

    def readinto(self, buffer: Any) -> int | None:
        """Read what has arrived, or the first of what arrives in time."""
        seconds = self.bounds.until - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the answer takes too long")
        self._sock.settimeout(seconds)
        count = super().readinto(buffer) or 0
        self.bounds.left -= count
        self.bounds.until += count * self.bounds.each
        if self.bounds.left < 0:
            raise Unusable(f"The answer of another service has more than {_LARGEST} bytes.")
        # Before or in each value there is a sign; each costs up to two hundred bytes of memory.
        arrived = bytes(memoryview(buffer)[:count])
        self.bounds.values -= sum(map(arrived.count, (b",", b"[", b"{")))
        if self.bounds.values < 0:
            raise Unusable(f"The answer of another service has more than {_VALUES_MAX} values.")
        return count


class _PeerAnswer(http.client.HTTPResponse):
    """An answer that is refused by its head, or read within the bounds of the call."""

    def __init__(self, sock: socket.socket, *given: Any, **options: Any) -> None:
        super().__init__(sock, *given, **options)
        # The stream that the socket has made: it counts how many are open.
        stream: Any = self.fp.detach()
        stream.__class__ = _Stream
        stream.bounds = self._bounds = _now.bounds
        self.fp = io.BufferedReader(stream)

    def begin(self) -> None:
        """Read the head."""
        super().begin()
        why = None
        if self.status in _REDIRECTS:
            why = "leads elsewhere, which is not followed; name the right endpoint"
        elif any(
            each.strip().lower() != "identity"
            for each in self.headers.get_all("Content-Encoding", [])
        ):
            why = "is compressed, which Cyborg does not ask for"
        elif (self.length or 0) > self._bounds.left:
            why = f"has more than {_LARGEST} bytes"
        if why:
            raise Unusable(f"The answer {self.status} of another service {why}.")
        # Clients sleep for as long as it says.
        del self.headers["Retry-After"]


def _answer(*given: Any, **options: Any) -> http.client.HTTPResponse:
    """The reader of an answer: within the bounds of the call, if it has any."""
    kind = _PeerAnswer if getattr(_now, "bounds", None) else http.client.HTTPResponse
    return kind(*given, **options)


_plainly = adapters.HTTPAdapter.send


def _send(
    adapter: adapters.HTTPAdapter, request: requests.PreparedRequest, **options: Any
) -> requests.Response:
    """Send in the time that is left to the call, if it has bounds."""
    if getattr(_now, "bounds", None) is None:
        return _plainly(adapter, request, **options)
    request.headers["Accept-Encoding"] = "identity"
    with within(options.get("timeout"), streams=bool(options.get("stream"))) as left:
        return _plainly(adapter, request, **options | {"timeout": left})


# Libraries that make sessions of their own, as castellan does, are kept within the bounds too.
_changed: Any = connection.HTTPConnection
_changed.response_class = staticmethod(_answer)
_changed = adapters.HTTPAdapter
_changed.send = _send


class Places:
    """The threads of the API that may wait for other services, with a share for each of these.

    Of that each project has a share. Who finds no place waits, unless the service has not answered
    for long: else those who wait would hold all threads in the end.
    """

    def __init__(self, threads: int, *, of_one_service: bool = False) -> None:
        whole = threads - threads // 2 - 1
        #: Of all services, of one, and of one for one project.
        self._most = tuple(max(1, whole - (not of_one_service) * less) for less in (0, 1, 2))
        self._taken: collections.Counter[tuple[str | None, ...]] = collections.Counter()
        #: Since when somebody waits for a service that has not answered since.
        self._waiting: dict[str, float] = {}
        self._waiters = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, service: str, project: str | None) -> Iterator[None]:
        """A place until the block ends.

        :raises Unusable: there is none
        """
        keys = ((), (service,), (service, project))
        with self._changed:
            if not self._taken[(service,)]:
                # Nobody waits for its answer: how long others waited before does not count.
                self._waiting.pop(service, None)
            while any(map(int.__ge__, map(self._taken.__getitem__, keys), self._most)):
                since = self._waiting.setdefault(service, time.monotonic())
                patience = _PATIENCE if self._waiters < self._most[0] else _HASTE
                if (left := since + patience - time.monotonic()) <= 0:
                    raise Unusable(f"Too many requests wait for {service}; try again in a moment.")
                self._waiters += 1
                self._changed.wait(left)
                self._waiters -= 1
            self._taken.update(keys)
        try:
            yield
            self._waiting.pop(service, None)
        finally:
            with self._changed:
                self._taken -= collections.Counter(keys)
                self._changed.notify_all()


def document(answer: requests.Response, shape: Any) -> Any:
    """The JSON document of an answer; :func:`fits` says what shapes are.

    :raises Unusable: it is none, or of another shape
    """
    what = f"The answer {answer.status_code} to {answer.request.method} {answer.request.path_url}"
    try:
        found = json.loads(answer.content)
    except (ValueError, RecursionError) as exc:
        raise Unusable(f"{what} is not JSON: {exc}") from exc
    if not fits(found, shape):
        raise Unusable(f"{what} does not match the API of the service.")
    return found


def fits(value: Any, shape: Any) -> bool:
    """True if a value has a shape.

    A shape is a type, None, a list of one shape, a tuple of possible shapes, a dict with a shape
    for each needed key, or ``{str: shape}`` for any keys. What is absent counts as None.
    """
    if isinstance(shape, tuple):
        return any(fits(value, each) for each in shape)
    if isinstance(shape, list | dict) and not isinstance(value, type(shape)):
        return False
    if isinstance(shape, list):
        return all(fits(each, shape[0]) for each in value)
    if isinstance(shape, dict):
        wanted = dict.fromkeys(value, shape[str]) if str in shape else shape
        return all(fits(value.get(key), each) for key, each in wanted.items())
    if shape in {int, float}:
        return type(value) in {int, shape} and abs(value) < _NUMBERS
    is_one = value is None if shape is None else isinstance(value, shape)
    return is_one and (shape is not str or value.isprintable())


@contextlib.contextmanager
def reading(services: str) -> Iterator[None]:
    """Take for an odd answer what fails in the block, which reads what services have answered.

    :raises Unusable: it failed
    """
    try:
        yield
    except ODD as exc:
        raise Unusable(f"{services} answers oddly: {exc!r}") from exc
