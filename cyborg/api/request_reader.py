# SPDX-License-Identifier: Apache-2.0
"""Requests on their way in: where they end, and the connections on which they arrive.

:mod:`cyborg.api.gate` reads the connections.
"""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import ssl
from dataclasses import dataclass
from typing import Any

from cheroot import makefile
from cheroot import server as cheroot

from cyborg.api import bounds

#: Bytes of the largest request line with headers: many times a token of Keystone.
HEAD_MAX = 128 * 1024
#: Bytes of the longest line that says how large a chunk is.
_CHUNK_LINE_MAX = 256
#: Bytes of the trailers behind the last chunk, which nobody reads.
_TRAILERS_MAX = 8192
_PIECE = 64 * 1024
#: Empty lines before a request that are passed over (see RFC 9112, section 2.2).
_EMPTY_LINES_MAX = 8
#: Bytes that a client may still send after its answer, so that it sees the answer.
LINGER_BYTES = 16 * 1024 * 1024
#: A length that is too large under any configuration.
_HUGE = b"9" * 17

#: The sentence for a connection that is one too many of its address.
CROWDED = "Your address has more connections than are kept for it; try again later."

_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")


class Refused(Exception):
    """The request is answered at once, and the connection closed."""

    def __init__(self, status: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the head of a request says about the rest of it."""

    #: Bytes, with the empty line.
    size: int
    path: str
    length: int
    chunked: bool
    #: Whether the client sends the body only when told to.
    waits: bool


def read_head(content: bytes) -> Head:
    """Read a whole head.

    :raises Refused: where the request ends could be understood in two ways
    """
    first, *lines = content[:-4].split(b"\r\n")
    found: dict[bytes, bytes] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise Refused("400 Bad Request", "A header is malformed.")
        name = header[1].lower()
        if name in {b"content-length", b"transfer-encoding"} and name in found:
            raise Refused("400 Bad Request", f"There are two headers {name.decode()}.")
        found[name] = header[2]
    length, coding = found.get(b"content-length"), found.get(b"transfer-encoding")
    if length is not None and not re.fullmatch(rb"[0-9]{1,17}", length):
        raise Refused("400 Bad Request", "Content-Length must be a whole number.")
    if coding is not None and (length is not None or not first.endswith(b" HTTP/1.1")):
        raise Refused("400 Bad Request", "This request must not have Transfer-Encoding.")
    if coding is not None and coding.lower() != b"chunked":
        raise Refused("501 Not Implemented", "Transfer-Encoding must be chunked.")
    parts = first.split(b" ")
    return Head(
        size=len(content),
        path=(parts[1] if len(parts) > 1 else b"").partition(b"?")[0].decode("latin-1"),
        length=int(length or 0),
        chunked=coding is not None,
        waits=found.get(b"expect", b"").lower() == b"100-continue",
    )


class Arrival:
    """How much of one request has arrived."""

    def __init__(self) -> None:
        self.head: Head | None = None
        #: The body is larger than permitted; it was not read, and will not be.
        self.too_large = False
        #: Something of it has arrived, if only an empty line before it.
        self.begun = False
        self._empty_lines = 0
        self._searched = 0
        #: Of a body in chunks, what has arrived, without what is around it.
        self.body = bytearray()
        #: Its bytes, when all of it has arrived.
        self.body_size = 0
        #: Bytes of the present chunk that are missing, with its line end.
        self._missing = 0
        self._framing = 0
        self._ended = False

    def is_complete(self, content: bytearray, limit: int) -> bool:
        """Whether a thread can serve it: nothing is missing, or the body is larger than ``limit``.

        :raises Refused: the request is malformed
        """
        if self.head is None:
            self._find_head(content)
        head = self.head
        if head is None:
            return False
        if head.chunked:
            return self._chunks_complete(content, head, limit)
        self.too_large = head.length > limit
        return self.too_large or len(content) >= head.size + head.length

    def _find_head(self, content: bytearray) -> None:
        empty = re.match(rb"(?:\r\n)*", content)
        if empty and empty.end():
            self._empty_lines += empty.end() // 2
            del content[: empty.end()]
        if self._empty_lines > _EMPTY_LINES_MAX:
            raise Refused("400 Bad Request", "There are too many empty lines before the request.")
        end = content.find(b"\r\n\r\n", max(0, self._searched - 3))
        self._searched = len(content)
        if max(end, 0 if end >= 0 else len(content)) > HEAD_MAX:
            raise Refused(
                "431 Request Header Fields Too Large",
                f"Request line and headers must have at most {HEAD_MAX} bytes.",
            )
        if end >= 0:
            self.head = read_head(bytes(content[: end + 4]))

    def _chunks_complete(self, content: bytearray, head: Head, limit: int) -> bool:
        """Take the framing out of what has arrived; the last time, put the body in its place."""
        place = head.size
        while not (self._ended or self.too_large) and place < len(content):
            if self._missing:
                part = content[place : place + self._missing]
                place += len(part)
                self._add(part)
                continue
            end = content.find(b"\r\n", place, place + _CHUNK_LINE_MAX)
            if end < 0:
                if len(content) - place >= _CHUNK_LINE_MAX:
                    raise Refused("400 Bad Request", "A chunk of the body is malformed.")
                break
            size = _chunk_size(bytes(content[place:end]))
            self._ended = size == 0
            self._missing = size + 2
            self.too_large = len(self.body) + size > limit
            # Behind the last chunk its line end may be the first half of the empty line.
            place = end if self._ended else end + 2
        # Tiny chunks have more bytes around them than in them.
        self._framing += place - head.size
        self.too_large = self.too_large or self._framing > 8 * limit + HEAD_MAX
        del content[head.size : place]
        return self.too_large or self._is_last(content, head)

    def _add(self, part: bytearray) -> None:
        self.body += part
        self._missing -= len(part)
        if not self._missing:
            if not self.body.endswith(b"\r\n"):
                raise Refused("400 Bad Request", "A chunk of the body is malformed.")
            del self.body[-2:]

    def _is_last(self, content: bytearray, head: Head) -> bool:
        if not self._ended:
            return False
        if content.find(b"\r\n\r\n", head.size) < 0:
            if len(content) - head.size > _TRAILERS_MAX:
                raise Refused("400 Bad Request", "The trailers of the body are too long.")
            return False
        content[head.size :] = self.body
        self.body_size = len(self.body)
        self.body.clear()
        return True


def _chunk_size(line: bytes) -> int:
    size = re.fullmatch(rb"([0-9A-Fa-f]{1,15})[ \t]*(;.*)?", line)
    if size is None:
        raise Refused("400 Bad Request", "A chunk of the body is malformed.")
    return int(size[1], 16)


class Inbox:
    """What was read from a connection, as the file in which cheroot finds a request."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.closed = False
        self.bytes_read = 0

    def read(self, size: int | None = None) -> bytes:
        """So many bytes, or as many as there are."""
        part = bytes(self.content[:size])
        del self.content[:size]
        self.bytes_read += len(part)
        return part

    def readline(self, size: int | None = None) -> bytes:
        """The bytes up to the end of the line."""
        end = self.content.find(b"\n") + 1 or len(self.content)
        return self.read(end if size is None else min(size, end))

    def close(self) -> None:
        """Forget what is left."""
        self.closed = True
        self.content.clear()


class _Headers(cheroot.HeaderReader):
    def _allow_header(self, name: bytes) -> bool:
        # Who waits for 100-continue was told already. A header with an underscore would take the
        # place of the one with a hyphen.
        return name != b"Expect" and b"_" not in name


class Request(cheroot.HTTPRequest):
    """A request that has arrived."""

    header_reader = _Headers()

    def read_request_headers(self) -> bool:
        """Read the headers, and settle whether the connection can be used again."""
        if not super().read_request_headers():  # type: ignore[no-untyped-call]
            return False
        arrival = self.conn.arrival
        if self.chunked_read:
            # The body is there without chunks, and what comes after them is not read.
            del self.inheaders[b"Transfer-Encoding"]
            self.inheaders[b"Content-Length"] = b"%d" % arrival.body_size
            self.chunked_read = False
            self.close_connection = True
        if arrival.too_large:
            # Also if it came in chunks, the application learns it as it does of other bodies.
            self.inheaders[b"Content-Length"] = _HUGE
            self.close_connection = True
        return True


class Connection(cheroot.HTTPConnection):
    """A connection whose requests the gate reads, and whose answers it sends on."""

    RequestHandlerClass = Request

    def __init__(self, server: Any, sock: socket.socket, make: Any = makefile.MakeFile) -> None:
        super().__init__(server, sock, make)
        self.rfile = Inbox()
        self.wfile = bounds.Outbox(sock)
        self.arrival = Arrival()
        #: Until when a request must have arrived.
        self.deadline = 0.0
        #: Bytes that may still be read and thrown away; None while requests are welcome.
        self.lingers: int | None = None
        self.shaken = not isinstance(sock, ssl.SSLSocket)
        self.told = False
        #: It is one too many of its address, and learns that as soon as it can be told.
        self.surplus = False
        #: It is closed when its answer is sent.
        self.ends = False

    def close(self) -> None:
        """Close it when its answer is sent, and if it may still be sending, has been seen."""
        if self.lingers is None and self.wfile.unsent:
            self.ends = True
            self.rfile.content.clear()
            self.server.put_conn(self)
        elif self.lingers is None and self.arrival.too_large and self.server.ready:
            self.lingers = LINGER_BYTES
            self.server.put_conn(self)
        else:
            try:
                super().close()
            finally:
                self.server.ledger.leave(self)

    def receive(self) -> None:
        """Take what has arrived.

        :raises Refused: it can be no request, or none of this connection is welcome
        :raises OSError: nothing has arrived, or nothing more will
        """
        if not self.shaken and self.lingers is None:
            self._shake_hands()
        if self.surplus and self.lingers is None:
            raise Refused("503 Service Unavailable", CROWDED)
        wanted = _PIECE
        while wanted:
            part = self.socket.recv(wanted)
            if not part:
                raise ConnectionAbortedError
            if self.lingers is None:
                self.rfile.content += part
            else:
                self.lingers -= len(part)
            # What TLS holds back, no selector sees.
            wanted = self.socket.pending() if isinstance(self.socket, ssl.SSLSocket) else 0

    def _shake_hands(self) -> None:
        try:
            self.socket.do_handshake()
        except ssl.SSLError as exc:
            if exc.reason == "HTTP_REQUEST":
                raise Refused("400 Bad Request", "This port speaks HTTPS only.") from exc
            raise
        self.ssl_env = self.server.ssl_adapter.get_environ(self.socket)
        self.shaken = True

    def say(self, text: str) -> None:
        """Send a short text, if the client takes it at once."""
        with contextlib.suppress(OSError):
            if self.shaken:
                self.socket.send(text.encode())
            else:
                # Before the handshake there is no TLS to speak through.
                socket.socket.send(self.socket, text.encode())

    @functools.cached_property
    def peer(self) -> str:
        """Who is counted as one client."""
        return bounds.peer_of(str(self.remote_addr))

    @property
    def is_welcome(self) -> bool:
        """Whether it may still send a request."""
        return self.lingers is None and not self.surplus

    @property
    def held(self) -> int:
        """Bytes that have arrived and are kept."""
        return len(self.rfile.content) + len(self.arrival.body)
