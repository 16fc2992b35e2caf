# SPDX-License-Identifier: Apache-2.0
"""Clients that come at once and waste what a server has.

Some send no request that it can serve, others take no answer.
"""

from __future__ import annotations

import contextlib
import socket
import threading

SLOW, LARGE, HALF, UNREAD = 200, 50, 50, 20

_SECONDS = 60
_HEAD = (
    b"POST /v2/device_profiles HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\n"
)
_SLOW = b"GET /v2/devices HTTP/1.1\r\nHost: localhost\r\nX-More: "
_LARGE = _HEAD + b"Content-Length: 200000000\r\n\r\n"
#: Of a megabyte almost all is around the chunks.
_HALF = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1;%b\r\n \r\n" % (b"x" * 241) * 4000
_DOCUMENT = b"GET /v2/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
_PIECE = b" " * 65536
#: Bytes of a half body that are sent at a time.
_BIT = 8192
#: Clients of one address: fewer than [api] max_connections_per_peer.
_TOGETHER = 8
#: Requests that a client sends at once: their answers fit in no buffer of the kernel.
_AHEAD = 500
#: Bytes of the smallest segments and buffers that the kernel permits, or less.
_TINY = 128


class Crowd:
    """While the block runs, slow clients send byte after byte, and others as much as they can.

    Those who send halves of bodies begin again when one is sent. Others ask and do not read.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._stack = contextlib.ExitStack()
        self._slow: list[socket.socket] = []
        #: Those whose large bodies the server still takes.
        self._large: list[socket.socket] = []
        #: By their number: who sends half of a body, and what is left of it.
        self._halves: dict[int, tuple[socket.socket, memoryview]] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._send, name="crowd", daemon=True)

    def __enter__(self) -> Crowd:
        self._slow = [self._connect(number, _SLOW) for number in range(SLOW)]
        self._large = [self._connect(number, _LARGE) for number in range(LARGE)]
        for number in range(HALF):
            self._begin_half(number)
        for _ in range(UNREAD):
            one = self._stack.enter_context(narrow(self._port, "127.0.2.1"))
            one.setblocking(False)
            with contextlib.suppress(OSError):
                one.send(_DOCUMENT * _AHEAD)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self._thread.is_alive(), "the crowd gave up"
        self._end.set()
        self._thread.join()
        for one, _ in self._halves.values():
            one.close()
        self._stack.close()

    def _connect(self, number: int, sent: bytes) -> socket.socket:
        return self._stack.enter_context(_connected(self._port, 1 + number // _TOGETHER, sent))

    def _begin_half(self, number: int) -> None:
        one = _connected(self._port, 1 + number // _TOGETHER, b"")
        self._halves[number] = one, memoryview(_HALF)

    def _send(self) -> None:
        while not self._end.wait(0.02):
            for one in self._slow:
                with contextlib.suppress(OSError):
                    one.send(b"x")
            self._large = [one for one in self._large if _takes(one)]
            for number in range(HALF):
                self._go_on(number)

    def _go_on(self, number: int) -> None:
        one, rest = self._halves[number]
        try:
            rest = rest[one.send(rest[:_BIT]) :]
        except BlockingIOError:
            pass
        except OSError:
            rest = memoryview(b"")
        if rest:
            self._halves[number] = one, rest
        else:
            one.close()
            self._begin_half(number)


def _connected(port: int, network: int, sent: bytes) -> socket.socket:
    source, address = (f"127.0.1.{network}", 0), ("127.0.0.1", port)
    one = socket.create_connection(address, _SECONDS, source)
    one.sendall(sent)
    one.setblocking(False)
    return one


def _takes(one: socket.socket) -> bool:
    """Send a piece; whether the server may take more."""
    try:
        one.send(_PIECE)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def narrow(port: int, source: str, buffer: int = _TINY, segment: int = _TINY) -> socket.socket:
    """A connection of which the kernel keeps little of what is sent to it, on both sides."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
    one.settimeout(_SECONDS)
    one.bind((source, 0))
    one.connect(("127.0.0.1", port))
    return one
