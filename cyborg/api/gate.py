# SPDX-License-Identifier: Apache-2.0
"""The gate of the built-in server: one thread that waits for all clients, so that no other has to.

A request goes on to a thread of its own when all of it has arrived, or when its body is known to be
larger than permitted. What its client does not take of the answer at once comes back, and the next
request is looked at when that is sent. All this costs memory only, and that is bounded.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import queue
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable

from oslo_config import cfg

from cyborg.api import bounds
from cyborg.api.request_reader import CROWDED, LINGER_BYTES, Arrival, Connection, Refused

LOG = logging.getLogger(__name__)

_PIECE = 64 * 1024
#: Connections in all on which no request has arrived; the oldest is closed if there are more.
_WAITING_MAX = 512
#: Bytes that all connections may hold, with those whose requests are being answered. More is
#: taken only from connections that hold little.
_HELD_MAX = 16 * 1024 * 1024
_LITTLE = 4096
#: Bytes of answers that wait for their clients, besides those of the latest one.
_UNSENT_MAX = 16 * 1024 * 1024
#: Bytes of an answer that buy its client another second, over [api] request_timeout.
_BYTES_PER_SECOND = 16 * 1024
#: Seconds for which a client may still send after its answer, so that it sees the answer.
_LINGER_SECONDS = 2.0
#: Seconds after which lateness is looked for again.
_TICK = 0.25

_FULL = "The requests that are arriving have more bytes than are kept; try again later."
_BUSY = "More requests have arrived than can wait for an answer; try again later."


class Gate:
    """Reads connections until a request has arrived, and hands the connection over then.

    If that raises ``queue.Full``, the request is answered with 503. A connection that comes back
    with an answer, or a part of one, is kept until its client has taken that.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        hand_over: Callable[[Connection], None],
        ledger: bounds.Ledger,
    ) -> None:
        self._conf = conf
        self._ledger = ledger
        self._hand_over = hand_over
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._new: collections.deque[Connection] = collections.deque()
        #: In the order in which they came.
        self._waiting: dict[Connection, None] = {}
        #: Those whose answers are sent, and since when.
        self._sending: dict[Connection, float] = {}
        self._looked = 0.0
        self._closing = False
        self._closed = threading.Event()
        self._end_by: float | None = None
        self._ended = False
        self._crowded = bounds.Warnings(
            "%s has more connections than [api] max_connections_per_peer: one of them is sent away"
        )
        self._untaken = bounds.Warnings(
            "A connection from %s is closed: it has taken %d bytes of an answer in %.1f seconds, "
            "and not the other %d; see [api] request_timeout"
        )
        self._pressed = bounds.Warnings(
            "A connection from %s is closed: it has taken %d bytes of an answer in %.1f seconds, "
            "and its address leaves most of all that is sent; %d bytes of this answer are lost"
        )
        self._filled = bounds.Warnings("Requests of %d bytes are arriving or being answered")
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)

    @property
    def waiting(self) -> int:
        """Connections on which no request has arrived."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin to read."""
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()

    def stop(self) -> None:
        """Close the connections on which no request has arrived, and all that come later."""
        self._closing = True
        self._wake()
        self._closed.wait()

    def end(self, seconds: float) -> None:
        """After :meth:`stop`: return when all answers are sent, but after so long at the latest."""
        self._end_by = time.monotonic() + seconds
        self._wake()
        self._thread.join()

    def admit(self, connection: Connection) -> None:
        """Send what is left of an answer, and read the next request; called by any thread."""
        self._new.append(connection)
        self._wake()
        if self._ended:
            self._end_new_ones()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._turn()
        finally:
            self._closed.set()
            self._ended = True
            self._end_all(self._sending)
            self._end_new_ones()

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TICK):
            if key.data is None:
                self._woken.recv(_PIECE)
            elif key.data in self._waiting or key.data in self._sending:
                # Otherwise it had to go for one of those before it.
                self._step(key.data)
        while self._new:
            self._try_to_enter(self._new.popleft())
        self._end_late_ones()
        if self._closing:
            self._end_all(self._waiting)
            self._closed.set()

    def _is_over(self) -> bool:
        if self._end_by is None:
            return False
        return not (self._sending or self._new) or time.monotonic() > self._end_by

    def _end_all(self, connections: Iterable[Connection]) -> None:
        for connection in list(connections):
            self._drop(connection)

    def _end_new_ones(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._drop(self._new.popleft())

    def _try_to_enter(self, connection: Connection) -> None:
        try:
            self._enter(connection)
        except Exception:
            # Such as a socket that was closed meanwhile; the gate serves all the others.
            LOG.exception("A connection from %s is closed", connection.peer)
            self._drop(connection)

    def _enter(self, connection: Connection) -> None:
        if connection.wfile.unsent:
            self._send_rest(connection)
        elif self._closing:
            self._drop(connection)
        else:
            self._welcome(connection)

    def _welcome(self, connection: Connection) -> None:
        is_new = not self._ledger.knows(connection)
        self._keep(connection)
        if connection.lingers is None:
            connection.arrival, connection.told = Arrival(), False
            connection.deadline = time.monotonic() + self._conf.api.request_timeout
        else:
            self._linger(connection)
        self._make_room(connection, is_new=is_new)
        if connection in self._waiting:
            self._step(connection)

    def _keep(self, connection: Connection) -> None:
        connection.socket.settimeout(0)
        self._ledger.note(connection, connection.peer, connection.held)
        self._waiting[connection] = None
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _make_room(self, connection: Connection, *, is_new: bool) -> None:
        most = self._conf.api.max_connections_per_peer
        if is_new and most and self._ledger.connections(connection.peer) > most:
            self._send_one_away(connection)
        if len(self._waiting) > _WAITING_MAX:
            lingering = (each for each in self._waiting if each.lingers is not None)
            self._drop(next(lingering, None) or next(iter(self._waiting)))

    def _send_one_away(self, newest: Connection) -> None:
        """The oldest of its address without a whole request, or the newest if all others have."""
        peer = newest.peer
        self._crowded.warn(peer)
        oldest = next(each for each in self._waiting if each.peer == peer and each.is_welcome)
        if oldest is newest:
            newest.surplus = True
        elif oldest.arrival.begun:
            self._refuse(oldest, Refused("503 Service Unavailable", CROWDED))
        else:
            self._drop(oldest)

    def _send_rest(self, connection: Connection) -> None:
        self._sending[connection] = time.monotonic()
        self._selector.register(connection.socket, selectors.EVENT_WRITE, connection)
        self._note(connection)
        while self._ledger.unsent > _UNSENT_MAX and len(self._sending) > 1:
            self._cut(self._most_wasteful(connection), self._pressed)

    def _most_wasteful(self, latest: Connection) -> Connection:
        """Of the address that leaves most unsent, who has the least time left."""
        others = [each for each in self._sending if each is not latest]
        left = collections.Counter[str]()
        for each in others:
            left[each.peer] += each.wfile.unsent
        return min(others, key=lambda each: (-left[each.peer], self._take_by(each)))

    def _take_by(self, connection: Connection) -> float:
        """Until when the answer must be taken: the more of it is, the later."""
        bought = connection.wfile.taken / _BYTES_PER_SECOND
        return float(self._sending[connection] + self._conf.api.request_timeout + bought)

    def _cut(self, connection: Connection, why: bounds.Warnings) -> None:
        outbox = connection.wfile
        seconds = time.monotonic() - self._sending[connection]
        why.warn(connection.peer, outbox.taken, seconds, outbox.unsent)
        self._drop(connection)

    def _push(self, connection: Connection) -> None:
        connection.wfile.push()
        self._note(connection)
        if connection.wfile.unsent:
            return
        self._leave(connection)
        if connection.ends:
            connection.close()
        else:
            self._enter(connection)

    def _note(self, connection: Connection) -> None:
        held, unsent = connection.held, connection.wfile.unsent
        self._ledger.note(connection, connection.peer, held, unsent)

    def _step(self, connection: Connection) -> None:
        try:
            if connection in self._sending:
                self._push(connection)
            elif not self._is_through(connection):
                connection.receive()
                if not connection.arrival.begun:
                    connection.arrival.begun = True
                    connection.deadline = self._deadline(connection)
                self._is_through(connection)
        except Refused as refused:
            self._refuse(connection, refused)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self._drop(connection)
        except Exception:
            LOG.exception("A connection from %s is closed", connection.peer)
            self._drop(connection)

    def _weigh(self, connection: Connection) -> None:
        """Send away who holds most, if all hold too much together.

        :raises Refused: that is the connection itself
        """
        self._ledger.note(connection, connection.peer, connection.held)
        if self._ledger.bytes <= max(_HELD_MAX, 4 * self._conf.api.max_request_body_size):
            return
        most = max((*self._waiting, *self._sending), key=lambda each: each.held)
        if most.held > _LITTLE:
            self._filled.warn(self._ledger.bytes)
            refused = Refused("503 Service Unavailable", _FULL)
            if most is connection:
                raise refused
            if most in self._sending:
                # What it holds are requests behind the one that is answered.
                self._drop(most)
            else:
                self._refuse(most, refused)

    def _deadline(self, connection: Connection) -> float:
        if connection.lingers is not None:
            return connection.deadline
        return float(time.monotonic() + self._conf.api.request_timeout)

    def _is_through(self, connection: Connection) -> bool:
        """Whether the gate has done with the connection."""
        if connection.lingers is not None:
            if connection.lingers >= 0:
                return False
            self._drop(connection)
            return True
        arrival = connection.arrival
        limit = self._conf.api.max_request_body_size
        complete = arrival.is_complete(connection.rfile.content, limit)
        self._weigh(connection)
        if complete:
            self._leave(connection)
            connection.wfile.begin()
            try:
                self._hand_over(connection)
            except queue.Full:
                self._keep(connection)
                raise Refused("503 Service Unavailable", _BUSY) from None
            return True
        if arrival.head and arrival.head.waits and not connection.told:
            connection.told = True
            connection.say("HTTP/1.1 100 Continue\r\n\r\n")
        return False

    def _end_late_ones(self) -> None:
        now = time.monotonic()
        if now < self._looked + _TICK:
            return
        self._looked = now
        for connection in [each for each in self._sending if self._take_by(each) < now]:
            self._cut(connection, self._untaken)
        for connection in [each for each in self._waiting if each.deadline < now]:
            if connection.lingers is None and connection.rfile.content:
                limit = self._conf.api.request_timeout
                sentence = f"A request must arrive within {limit:g} seconds."
                self._refuse(connection, Refused("408 Request Timeout", sentence))
            else:
                self._drop(connection)

    def _refuse(self, connection: Connection, refused: Refused) -> None:
        body = f"{refused.sentence}\n"
        connection.say(
            f"HTTP/1.1 {refused.status}\r\nConnection: close\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        )
        connection.lingers = LINGER_BYTES
        self._linger(connection)

    def _linger(self, connection: Connection) -> None:
        connection.rfile.content.clear()
        connection.arrival.body.clear()
        self._ledger.note(connection, connection.peer, 0)
        connection.deadline = time.monotonic() + _LINGER_SECONDS
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_WR)

    def _leave(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)
        self._sending.pop(connection, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)

    def _drop(self, connection: Connection) -> None:
        self._leave(connection)
        connection.lingers = 0
        connection.close()
