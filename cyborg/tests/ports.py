# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that are started by their number, later or again and again."""

from __future__ import annotations

import contextlib
import secrets
import socket

#: Below what the kernel gives to whoever asks for any port, which may be this one a moment later,
#: and below the ports of ``tools/services.sh``.
_PORTS = range(10_000, 20_000)
_given: set[int] = set()


def free_port() -> int:
    """A port of the loopback that nobody has, and that this process is not told of again."""
    while True:
        port = secrets.choice(_PORTS)
        if port not in _given:
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                _given.add(port)
                return port
