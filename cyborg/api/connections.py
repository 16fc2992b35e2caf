# SPDX-License-Identifier: Apache-2.0
"""Connections of the built-in server: what waitress leaves open about requests and clients.

Waitress reads requests whole, and sends what clients do not take at once, in one thread: only that
thread and the one that answers a connection's request touch the connection.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import math
import socket
import ssl
import time
from typing import Any

from waitress import channel, parser, task, utilities

LOG = logging.getLogger(__name__)

#: The sentence for a connection that is one too many of its address.
CROWDED = "Your address has more connections than are kept for it; try again later."

#: Bytes around the chunks of a body, which take long to read, and of a line among them.
_FRAMING_MAX = 64 * 1024
_FRAMING_LINE_MAX = 8192
#: A length that is too large under any configuration.
_HUGE = "9" * 17
#: Bytes of an answer that buy its client another second, over [api] request_timeout.
_BYTES_PER_SECOND = 16 * 1024
#: Seconds for which a client may still send after its answer, so that it sees the answer.
_LINGER_SECONDS = 2.0
_LINGER_BYTES = 16 * 1024 * 1024
_PIECE = 64 * 1024
#: Seconds between two lines of a warning.
_SILENCE = 10.0


class Late(utilities.Error):
    """The request did not arrive in time."""

    code = 408
    reason = "Request Timeout"


class Busy(utilities.Error):
    """There are too many requests or connections."""

    code = 503
    reason = "Service Unavailable"


class RequestParser(parser.HTTPRequestParser):
    """A request, refused where its end could be understood in two ways."""

    # None of a request without a body, which waitress's class does not say.
    body_rcv: Any
    error: utilities.Error | None
    content_length: int
    #: Its body is larger than permitted, and is not read.
    cut = False
    #: The bytes that have arrived behind it.
    rest = b""
    #: Waitress logs it, also of a request whose head never arrived.
    path = ""

    def parse_header(self, header_plus: bytes) -> None:
        """Read the head.

        :raises ParsingError: it is malformed, or says twice where the request ends
        """
        _check_framing(header_plus)
        try:
            super().parse_header(header_plus)
        except ValueError as exc:
            raise parser.ParsingError("The request line or a number is malformed.") from exc
        if self.content_length > self._limit:
            self._cut()
            self.body_rcv, self.content_length, self.expect_continue = None, 0, False

    @property
    def _limit(self) -> int:
        return int(self.adj.conf.api.max_request_body_size)

    def _cut(self) -> None:
        """Let the application refuse the body by its length alone, as it refuses others."""
        self.cut = self.completed = True
        self.headers |= {"CONNECTION": "close", "CONTENT_LENGTH": _HUGE}

    def received(self, data: bytes) -> int:
        """Take what has arrived; returns its length, as what is behind the request waits."""
        count = int(super().received(data))
        if self.chunked and not self.error:
            self.headers["CONNECTION"] = "close"
            self._check_chunks(self.body_rcv)
        if not self.completed:
            return count
        # Nothing is to come; waitress would take it for unfinished after "100 Continue".
        self.expect_continue = False
        self.rest = data[count:]
        return len(data)

    def _check_chunks(self, body: Any) -> None:
        if len(body) > self._limit:
            self._cut()
        elif (
            self.body_bytes_received - len(body) > _FRAMING_MAX
            or len(body.control_line) + len(body.trailer) > _FRAMING_LINE_MAX
        ):
            self.error = utilities.BadRequest("There is too much around the chunks of the body.")
            self.completed = True

    @property
    def held(self) -> int:
        """Bytes that are kept."""
        return len(self.header_plus) + (len(self.body_rcv) if self.body_rcv is not None else 0)


def _check_framing(head: bytes) -> None:
    """Raise ParsingError if another server might find the end of the request elsewhere."""
    first, *lines = head.split(b"\r\n")
    if any(line.startswith((b" ", b"\t")) for line in lines):
        raise parser.ParsingError("A header must be on one line.")
    found = [
        (name, value.strip(b" \t").lower())
        for name, _, value in (line.lower().partition(b":") for line in lines)
        if name in {b"content-length", b"transfer-encoding"}
    ]
    if len(found) > 1:
        raise parser.ParsingError("Send one Content-Length or one Transfer-Encoding header.")
    if not found or found[0][0] == b"content-length":
        return
    if not first.endswith(b" HTTP/1.1"):
        raise parser.ParsingError("This request must not have Transfer-Encoding.")
    if found[0][1] != b"chunked":
        raise parser.TransferEncodingNotImplemented("Transfer-Encoding must be chunked.")


class Answer(task.WSGITask):
    """An answer; after one without a body, such as that to DELETE, the connection is kept."""

    def set_close_on_finish(self) -> None:
        """Close the connection, where the client asks for that or sees no other end."""
        asks = self.request.headers.get("CONNECTION", "").lower() == "close"
        if self.has_body or self.version == "1.0" or asks:
            super().set_close_on_finish()


class Connection(channel.HTTPChannel):
    """A connection, with a time for each request to arrive and for each answer to be taken."""

    parser_class = RequestParser
    task_class = Answer
    server: Any
    request: RequestParser | None
    requests: list[RequestParser]
    total_outbufs_len: int

    def __init__(self, server: Any, sock: socket.socket, addr: Any, *rest: Any, **more: Any):
        super().__init__(server, sock, addr, *rest, **more)
        self.peer = peer_of(str(addr[0]))
        #: Its next request is answered when the last answer is sent.
        self.postponed = False
        self.begun = False
        #: No other request of it is answered.
        self.leaves = False
        self.lingers = self._is_cut = False
        self._thrown_away = 0
        #: The bytes behind the last request, which are read after its answer: a client that
        #: asks a thousand times at once takes the thread that reads no longer than others.
        self._rest = b""
        self.give_time()
        server.make_room(self)

    def give_time(self) -> None:
        """Begin to wait, for a request or for the client to take what is left of an answer."""
        self._until = time.monotonic() + self.server.conf.api.request_timeout
        self._owed = self.total_outbufs_len

    def is_late(self) -> bool:
        """True if its client has let pass the time for that: what it took has bought some more."""
        taken = max(0, self._owed - self.total_outbufs_len)
        return bool(self._until + taken / _BYTES_PER_SECOND < time.monotonic())

    @property
    def is_idle(self) -> bool:
        """True if it waits for its client only."""
        return not self.requests or self.postponed

    @property
    def awaits_request(self) -> bool:
        """True if no whole request has arrived, and no answer is left to be sent."""
        return not (self.requests or self.total_outbufs_len)

    @property
    def held(self) -> int:
        """Bytes of requests and answers that are kept."""
        waiting = self.request.held if self.request is not None else 0
        kept = len(self._rest) + sum(each.held for each in list(self.requests))
        return self.total_outbufs_len + waiting + kept

    def readable(self) -> bool:
        """True if more is read; waitress asks at every turn."""
        if self.postponed and not self.total_outbufs_len:
            self.postponed = False
            self.server.add_task(self)
        goes_on = not (self.requests or self.will_close or self.close_when_flushed or self.leaves)
        if self._rest and goes_on and not self.total_outbufs_len:
            try:
                self.received(self._rest)
            except OSError:
                # Waitress catches what is raised by handle_read, and not by this.
                self.end()
                return False
        return self.lingers or bool(super().readable())

    def received(self, data: bytes) -> bool:
        """Take what has arrived; when all of a request has, a thread is asked to answer."""
        if self.lingers:
            self._thrown_away += len(data)
            if self._thrown_away > _LINGER_BYTES:
                self.end()
            return False
        if self.request is None:
            # Waitress takes empty lines for requests.
            data, self._rest = data.lstrip(b"\r\n"), b""
        if not self.begun:
            self.begun = True
            self.give_time()
        if not data:
            return False
        if self.request is None:
            self.request = self.parser_class(self.adj)
        request, self._rest = self.request, b""
        answer = bool(super().received(data))
        self._rest = request.rest
        return answer

    def service(self) -> None:
        """Answer the first request: called by a thread."""
        self._until = math.inf
        request = self.requests[0]
        self._is_cut = request.cut or bool(request.error)
        super().service()
        self.begun = self.request is not None or bool(self._rest)
        self.give_time()

    def handle_close(self) -> None:
        """Close it, but first let a client that may be sending see its answer."""
        if self._is_cut and self.will_close and not self.lingers and self.connected:
            self.linger()
        else:
            super().handle_close()

    def linger(self) -> None:
        """Say that no more is sent, and throw away what arrives."""
        self.leaves, self.lingers, self.will_close = True, True, False
        self._until = time.monotonic() + _LINGER_SECONDS
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Close it at once."""
        self.lingers = True
        self.handle_close()

    def refuse(self, error: utilities.Error) -> None:
        """Answer with an error if a request has begun to arrive, and close the connection."""
        if self.begun and self.awaits_request and not self.lingers:
            self.answer(error)
        else:
            self.end()

    def answer(self, error: utilities.Error) -> None:
        """Let a thread answer with an error, and close the connection then."""
        request = self.request or self.parser_class(self.adj)
        request.error, request.completed, self.request = error, True, None
        self.requests.append(request)
        self.leaves = True
        self.server.add_task(self)


class TlsConnection(Connection):
    """A connection with TLS: a silent client holds up nobody."""

    _shaken = False

    def readable(self) -> bool:
        """True if more is read."""
        return super().readable() or not self._shaken

    def writable(self) -> bool:
        """True if something can be sent."""
        return bool(self._shaken and super().writable())

    def handle_read(self) -> None:
        """Shake hands, or take what has arrived."""
        try:
            if not self._shaken:
                self.socket.do_handshake()
                self._shaken = True
                if self.requests:
                    # A thread answers that it is one too many.
                    return
            data = self.socket.recv(_PIECE)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as exc:
            data = b""
            if isinstance(exc, ssl.SSLError) and exc.reason == "HTTP_REQUEST":
                _say_https_only(self.socket)
                self._shaken = True
                self.linger()
                return
        if data:
            self.received(data)
        else:
            self.end()

    def send(self, data: bytes, do_close: bool = True) -> int:  # noqa: FBT001, FBT002 - waitress's
        """Send what the client takes."""
        try:
            return int(super().send(data, do_close)) if self._shaken else 0
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0


def _say_https_only(sock: socket.socket) -> None:
    body = b"This port speaks HTTPS only.\n"
    head = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    with contextlib.suppress(OSError):
        # Before the handshake there is no TLS to speak through.
        socket.socket.send(sock, b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))


class Warnings:
    """A warning that clients can cause at will: one line in ten seconds tells how often."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._next = 0.0
        self._times = 0

    def warn(self, *values: object) -> None:
        """Count one more time, and log the line if it is due."""
        self._times += 1
        now = time.monotonic()
        if now >= self._next:
            LOG.warning("%s (since the last such line: %d)", self._message % values, self._times)
            self._next, self._times = now + _SILENCE, 0


def peer_of(address: str) -> str:
    """The peer that an address counts for: itself in IPv4, its network in IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4 or found.ipv4_mapped:
        return str(found)
    return str(ipaddress.ip_network((found, 64), strict=False))
