# SPDX-License-Identifier: Apache-2.0
"""A service that lies, drips or hangs: an HTTP server that answers whatever the present lie is."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

#: How much a bomb is when it is decompressed, and how much an answer that is endless has at least.
HUGE = 2**29
#: Seconds between two drops.
_DROP = 0.05

Send = Callable[[bytes], object]


@dataclass(frozen=True)
class Lie:
    """How each request is answered."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    #: What is done instead of an answer.
    instead: Callable[[Liar, Send], None] | None = None


def _hang(liar: Liar, _send: Send) -> None:
    liar.ended.wait()


def _drip(liar: Liar, send: Send, before: bytes = b"") -> None:
    send(before)
    while not liar.ended.wait(_DROP):
        send(b" ")


def _drip_body(liar: Liar, send: Send) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    _drip(liar, send, head)


def _drip_head(liar: Liar, send: Send) -> None:
    _drip(liar, send, b"HTTP/1.1 200 OK\r\nX-Long:")


def _drip_chunks(liar: Liar, send: Send) -> None:
    send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not liar.ended.wait(_DROP):
        send(b"1\r\n \r\n")


def _only_continue(liar: Liar, send: Send) -> None:
    while not liar.ended.wait(_DROP):
        send(b"HTTP/1.1 100 Continue\r\n\r\n")


def _reset(_liar: Liar, _send: Send) -> None:
    """Close without a word."""


def _stop_short(_liar: Liar, send: Send) -> None:
    send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")


def _no_http(_liar: Liar, send: Send) -> None:
    send(b"SSH-2.0-OpenSSH_9.6\r\n" * 100)


def _endless(liar: Liar, send: Send) -> None:
    send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    piece, sent = b" " * 2**20, 0
    while sent < HUGE and not liar.ended.is_set():
        send(piece)
        sent += len(piece)


def _bomb() -> bytes:
    """So many members of one MiB."""
    return gzip.compress(b" " * 2**20) * (HUGE // 2**20)


def said(document: Any, **more: Any) -> Lie:
    """An answer with that document."""
    return Lie(body=json.dumps(document).encode(), **more)


#: Those that end at the deadline and not before.
SLOW = {
    "hangs": Lie(instead=_hang),
    "drips the body": Lie(instead=_drip_body),
    "drips the head": Lie(instead=_drip_head),
    "drips chunks": Lie(instead=_drip_chunks),
    "only continues": Lie(instead=_only_continue),
}
#: Those that can be seen at once.
QUICK = {
    "resets": Lie(instead=_reset),
    "stops short": Lie(instead=_stop_short),
    "is no HTTP": Lie(instead=_no_http),
    "never ends": Lie(instead=_endless),
    "says it is huge": Lie(headers={"Content-Length": str(10**14)}),
    "is a bomb": Lie(body=_bomb(), headers={"Content-Encoding": "gzip"}),
    "is a bomb in a bomb": Lie(
        body=gzip.compress(_bomb()), headers={"Content-Encoding": "gzip, gzip"}
    ),
    "is a bomb, and says so second": Lie(
        body=_bomb(), headers={"Content-Encoding": "identity\r\nContent-Encoding: gzip"}
    ),
    "leads elsewhere": Lie(302, headers={"Location": "/elsewhere"}),
    "leads elsewhere for ever": Lie(308, headers={"Location": ""}),
    "is HTML": Lie(body=b"<html><body>Welcome!</body></html>"),
    "is nothing": Lie(204),
    "is empty": Lie(),
    "is null": said(None),
    "is a number": Lie(body=b"NaN"),
    "is a huge number": Lie(body=b"1" * 100_000),
    "is a list": said([]),
    "is a text": said("text"),
    "is an object": said({}),
    "has many values": Lie(body=b'{"a": [' + b"[]," * 9_000_000 + b"0]}"),
    "is deep": Lie(body=b"[" * 500_000),
    "is no UTF-8": Lie(body=b'{"a": "\xff"}'),
    "is an error in HTML": Lie(503, body=b"<html>no</html>", headers={"Retry-After": "86400"}),
    "is an error and null": said(None, status=400),
    "is an error and deep": Lie(500, body=b"[" * 500_000),
}


def twisted(document: Any) -> Iterator[Any]:
    """The document of an honest answer with one value of another type or gone, each in its turn."""
    yield from (None, "x", -1, 2**70, 1.5, float("nan"), [], {}, [None], {"a": None}, "\ud800")
    if isinstance(document, dict):
        for key, value in document.items():
            yield {name: each for name, each in document.items() if name != key}
            for other in twisted(value):
                yield document | {key: other}
    elif isinstance(document, list):
        for number, value in enumerate(document):
            for other in twisted(value):
                yield [*document[:number], other, *document[number + 1 :]]


class Liar:
    """The server, at :attr:`url`; ``lie`` may be changed at any time."""

    def __init__(self) -> None:
        self.lie = Lie()
        #: Answers by the beginnings of paths, which are given instead of the lie.
        self.honest: dict[str, Lie] = {}
        self.calls: list[str] = []
        self.ended = threading.Event()
        liar = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(OSError):
                    super().handle_one_request()

            def log_message(self, *_given: object) -> None:
                """Say nothing."""

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                liar.calls.append(f"{self.command} {self.path}")
                honest = (lie for path, lie in liar.honest.items() if self.path.startswith(path))
                liar.tell(self, next(honest, liar.lie))

            do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = _answer  # noqa: N815 - as it has it

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def tell(self, handler: http.server.BaseHTTPRequestHandler, lie: Lie) -> None:
        """Answer a request."""
        handler.close_connection = lie.instead is not None
        if lie.instead is not None:
            lie.instead(self, handler.wfile.write)
            return
        handler.send_response(lie.status)
        headers = {"Content-Length": str(len(lie.body)), "Content-Type": "application/json"}
        for name, value in (headers | lie.headers).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(lie.body)

    def stop(self) -> None:
        """Let everyone go, and serve no more."""
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
