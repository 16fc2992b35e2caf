# SPDX-License-Identifier: Apache-2.0
"""Clients that come at once and waste what a server has: none sends a request that it can serve."""

from __future__ import annotations

import contextlib
import socket
import threading

SLOW, LARGE, HALF = 200, 50, 50

_SECONDS = 60
_HEAD = (
    b"POST /v2/device_profiles HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\n"
)
_SLOW = b"GET /v2/devices HTTP/1.1\r\nHost: localhost\r\nX-More: "
_LARGE = _HEAD + b"Content-Length: 200000000\r\n\r\n"
#: Of a megabyte almost all is around the chunks.
_HALF = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1;%b\r\n \r\n" % (b"x" * 241) * 4000
_PIECE = b" " * 65536
#: Clients of one address: fewer than [api] max_connections_per_peer.
_TOGETHER = 8


class Crowd:
    """While the block runs, slow clients send byte after byte, and others as much as they can."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stack = contextlib.ExitStack()
        self._slow: list[socket.socket] = []
        #: Those whose large bodies the server still takes.
        self._large: list[socket.socket] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._send, name="crowd", daemon=True)

    def __enter__(self) -> Crowd:
        self._slow = [self._connect(number, _SLOW) for number in range(SLOW)]
        self._large = [self._connect(number, _LARGE) for number in range(LARGE)]
        for number in range(HALF):
            one = self._connect(number, b"")
            one.setblocking(True)
            one.sendall(_HALF)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end.set()
        self._thread.join()
        self._stack.close()

    def _connect(self, number: int, sent: bytes) -> socket.socket:
        source = (f"127.0.1.{1 + number // _TOGETHER}", 0)
        address = ("127.0.0.1", self._port)
        one = self._stack.enter_context(socket.create_connection(address, _SECONDS, source))
        one.sendall(sent)
        one.setblocking(False)
        return one

    def _send(self) -> None:
        while not self._end.wait(0.02):
            for one in self._slow:
                with contextlib.suppress(OSError):
                    one.send(b"x")
            self._large = [one for one in self._large if _takes(one)]


def _takes(one: socket.socket) -> bool:
    """Send a piece; whether the server may take more."""
    try:
        one.send(_PIECE)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True
