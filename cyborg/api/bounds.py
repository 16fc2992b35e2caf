# SPDX-License-Identifier: Apache-2.0
"""What the clients of the built-in server may take together: connections, memory, and time."""

from __future__ import annotations

import collections
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Hashable

#: Bytes that a client may send at most at a time.
_PIECE = 64 * 1024


class Ledger:
    """The connections that are open, whatever they do, and the bytes that each holds.

    Used by all threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_peer: collections.Counter[str] = collections.Counter()
        self._held: dict[Hashable, tuple[str, int]] = {}
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """What all hold."""
        return self._bytes

    def connections(self, peer: str) -> int:
        """How many a peer has."""
        return self._of_peer[peer]

    def note(self, connection: Hashable, peer: str, held: int) -> None:
        """A connection is open, and holds so many bytes now."""
        with self._lock:
            before = self._held.get(connection)
            if before is None:
                self._of_peer[peer] += 1
            self._held[connection] = peer, held
            self._bytes += held - (before[1] if before else 0)

    def leave(self, connection: Hashable) -> None:
        """It is closed."""
        with self._lock:
            peer, held = self._held.pop(connection, ("", 0))
            self._bytes -= held
            self._of_peer[peer] -= 1
            if self._of_peer[peer] <= 0:
                del self._of_peer[peer]


class Outbox:
    """Where an answer is written: its client must have taken all of it in ``seconds()``.

    Without that, who reads a little now and then would hold a thread as long as it likes.
    """

    def __init__(self, sock: socket.socket, seconds: Callable[[], float]) -> None:
        self._socket = sock
        self._seconds = seconds
        self._deadline: float | None = None
        self.closed = False
        self.bytes_written = 0

    def begin(self) -> None:
        """Another answer follows."""
        self._deadline = None

    def write(self, content: bytes) -> int:
        """Send all of it.

        :raises TimeoutError: the client has not taken it in time
        """
        rest = memoryview(content)
        while rest:
            try:
                self._socket.settimeout(self._left())
                rest = rest[self._socket.send(rest[:_PIECE]) :]
            except TimeoutError as exc:
                # TLS has another text, which cheroot would log as an error.
                raise TimeoutError("timed out") from exc
        self.bytes_written += len(content)
        return len(content)

    def _left(self) -> float:
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds()
        if now >= self._deadline:
            raise TimeoutError
        return self._deadline - now

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing is kept."""
        self.closed = True


def peer_of(address: str) -> str:
    """Who is counted as one: an IPv4 address, or a network of IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4 or found.ipv4_mapped:
        return str(found)
    return str(ipaddress.ip_network((found, 64), strict=False))
