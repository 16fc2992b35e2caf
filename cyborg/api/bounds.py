# SPDX-License-Identifier: Apache-2.0
"""What the clients of the built-in server may take together: connections, memory, and time."""

from __future__ import annotations

import collections
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections.abc import Hashable

LOG = logging.getLogger(__name__)

#: Bytes that are given to the socket at a time, and how often before others get their turn.
_PIECE = 64 * 1024
_PIECES = 16
#: Seconds between two lines of a warning.
_SILENCE = 10.0


class Ledger:
    """The connections that are open, whatever they do, and the bytes that each holds.

    Used by all threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_peer: collections.Counter[str] = collections.Counter()
        self._held: dict[Hashable, tuple[str, int, int]] = {}
        self._bytes = 0
        self._unsent = 0

    @property
    def bytes(self) -> int:
        """What all hold of requests."""
        return self._bytes

    @property
    def unsent(self) -> int:
        """What is left of the answers of all."""
        return self._unsent

    def knows(self, connection: Hashable) -> bool:
        """Whether it is counted already."""
        return connection in self._held

    def connections(self, peer: str) -> int:
        """How many a peer has."""
        return self._of_peer[peer]

    def note(self, connection: Hashable, peer: str, held: int, unsent: int = 0) -> None:
        """A connection is open, and holds so many bytes now."""
        with self._lock:
            if connection not in self._held:
                self._of_peer[peer] += 1
            _, held_before, unsent_before = self._held.get(connection, (peer, 0, 0))
            self._held[connection] = peer, held, unsent
            self._bytes += held - held_before
            self._unsent += unsent - unsent_before

    def leave(self, connection: Hashable) -> None:
        """It is closed."""
        with self._lock:
            peer, held, unsent = self._held.pop(connection, ("", 0, 0))
            self._bytes -= held
            self._unsent -= unsent
            self._of_peer[peer] -= 1
            if self._of_peer[peer] <= 0:
                del self._of_peer[peer]


class Outbox:
    """Where an answer is written. What its client does not take at once is kept, to be pushed.

    So no thread waits for a client, however slowly that reads.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._parts: collections.deque[memoryview] = collections.deque()
        #: Bytes that are kept.
        self.unsent = 0
        #: Bytes that were sent since :meth:`begin`.
        self.taken = 0
        self.closed = False
        self.bytes_written = 0

    def begin(self) -> None:
        """Another answer follows."""
        self.taken = 0

    def write(self, content: bytes) -> int:
        """Send what the client takes now, and keep the rest.

        :raises OSError: the connection is broken
        """
        if content:
            self._parts.append(memoryview(content))
            self.unsent += len(content)
            self.bytes_written += len(content)
        if len(self._parts) == 1:
            self.push()
        return len(content)

    def push(self) -> None:
        """Send of what is kept as much as the client takes now, up to a bound.

        :raises OSError: the connection is broken; nothing is kept any more
        """
        try:
            for _ in range(_PIECES):
                if not self._parts:
                    return
                self._sent(self._socket.send(self._parts[0][:_PIECE]))
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self._parts.clear()
            self.unsent = 0
            raise

    def _sent(self, count: int) -> None:
        self.unsent -= count
        self.taken += count
        self._parts[0] = self._parts[0][count:]
        if not self._parts[0]:
            self._parts.popleft()

    def flush(self) -> None:
        """Nothing is held back that could be sent."""

    def close(self) -> None:
        """Nothing is to be done: the connection ends when all is sent."""
        self.closed = True


class Warnings:
    """A warning that clients can cause at will: one line in ten seconds tells how often."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._next = 0.0
        self._times = 0

    def warn(self, *values: object) -> None:
        """It has happened again."""
        self._times += 1
        now = time.monotonic()
        if now >= self._next:
            LOG.warning("%s (since the last such line: %d)", self._message % values, self._times)
            self._next, self._times = now + _SILENCE, 0


def peer_of(address: str) -> str:
    """Who is counted as one: an IPv4 address, or a network of IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4 or found.ipv4_mapped:
        return str(found)
    return str(ipaddress.ip_network((found, 64), strict=False))
