# SPDX-License-Identifier: Apache-2.0
"""Calls to an SPDK application: JSON-RPC 2.0 over a stream without separators between messages."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

#: An answer has some hundred bytes for each namespace and some thousand for each bdev.
_ANSWER_MAX = 64 * 1024 * 1024
#: Values of an answer, each of which costs up to two hundred bytes of memory.
_VALUES_MAX = 3_000_000
_CHUNK = 65536


class SpdkError(Exception):
    """The application cannot be reached, does not answer, or answers with an error."""


class JsonRpcError(SpdkError):
    """The application answered with an error."""


class SpdkConnection:
    """One connection. Each call has ``timeout`` seconds, from the request to the end of the answer.

    After any failure except :class:`JsonRpcError` the connection cannot be used any more.
    """

    def __init__(self, stream: socket.socket, timeout: float) -> None:
        self._stream = stream
        self._timeout = timeout
        self._ids = itertools.count(1)

    def call(self, method: str, **params: Any) -> Any:
        """The result of a method.

        :raises JsonRpcError: the application answered with an error
        :raises SpdkError: there is no answer, or it cannot be read
        """
        number = next(self._ids)
        request: dict[str, Any] = {"jsonrpc": "2.0", "id": number, "method": method}
        if params:
            request["params"] = params
        deadline = time.monotonic() + self._timeout
        try:
            self._wait(deadline)
            self._stream.sendall(json.dumps(request).encode())
            answer = self._receive(deadline)
        except OSError as exc:
            raise SpdkError(f"{method}: {exc}") from exc
        except (ValueError, RecursionError) as exc:
            raise SpdkError(f"{method}: the answer cannot be read: {exc}") from exc
        if not isinstance(answer, dict) or answer.get("id") not in {number, None}:
            raise SpdkError(f"{method}: the answer is one to another request")
        if "error" in answer:
            raise JsonRpcError(f"{method}: {_sentence(answer['error'])}")
        if "result" not in answer:
            raise SpdkError(f"{method}: the answer has no result")
        return answer["result"]

    def _wait(self, deadline: float) -> None:
        """Set the time-out of the next socket operation, to end at the deadline."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer within {self._timeout:g} seconds")
        self._stream.settimeout(left)

    def _receive(self, deadline: float) -> Any:
        """One JSON document, however many pieces it arrives in."""
        received, values = bytearray(), 0
        while True:
            self._wait(deadline)
            try:
                chunk = self._stream.recv(_CHUNK)
            except TimeoutError:
                continue  # _wait() raises the error
            if not chunk:
                raise ConnectionError("the connection was closed before the end of the answer")
            received += chunk
            if not received.lstrip().startswith(b"{"):
                raise ValueError("it does not begin as a JSON object")
            if len(received) > _ANSWER_MAX:
                raise ConnectionError(f"the answer has more than {_ANSWER_MAX} bytes")
            values += sum(map(chunk.count, (b",", b"[", b"{")))
            if values > _VALUES_MAX:
                raise ConnectionError(f"the answer has more than {_VALUES_MAX} values")
            # Only a piece that ends with "}" can be the last: parsing after each takes long.
            if chunk.rstrip().endswith(b"}"):
                with contextlib.suppress(json.JSONDecodeError, UnicodeDecodeError):
                    return json.loads(received)


@contextlib.contextmanager
def connected(address: str, timeout: float) -> Iterator[SpdkConnection]:
    """A connection to the application at ``address``: a path, or ``host:port``.

    :raises SpdkError: the application cannot be reached; errors of calls get its address
    """
    try:
        stream = _connect(address, timeout)
    except OSError as exc:
        raise SpdkError(f"SPDK at {address} cannot be reached: {exc}") from exc
    with stream:
        try:
            yield SpdkConnection(stream, timeout)
        except SpdkError as exc:
            raise type(exc)(f"SPDK at {address}: {exc}") from exc


def parse(address: str) -> str | tuple[str, int]:
    """The path of a socket, or a host and its port.

    :raises ValueError: the address is neither
    """
    if address.startswith("/"):
        return address
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is neither the path of a socket nor host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _connect(address: str, timeout: float) -> socket.socket:
    place = parse(address)
    if isinstance(place, tuple):
        return socket.create_connection(place, timeout)
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.settimeout(timeout)
        stream.connect(place)
    except BaseException:
        stream.close()
        raise
    return stream


def _sentence(error: Any) -> str:
    if isinstance(error, dict):
        return f"{error.get('message')} ({error.get('code')})"
    return str(error)
