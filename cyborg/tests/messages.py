# SPDX-License-Identifier: Apache-2.0
"""Transports for tests, in memory and RabbitMQ, with topics that no other test uses."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import rpc
from cyborg.rpc import client
from cyborg.tests import servers
from cyborg.tests.ports import free_port

#: For ``parametrize`` and ``params``: every transport there is.
TRANSPORTS = ["memory", pytest.param("rabbitmq", marks=pytest.mark.services)]


@contextlib.contextmanager
def transport(conf: cfg.ConfigOpts, name: str) -> Iterator[None]:
    """Let the services of ``conf`` send messages over a transport of their own."""
    rpc.use_memory(conf)
    if name == "rabbitmq":
        conf.set_override("transport_url", servers.url_of("rabbitmq"))
    with pytest.MonkeyPatch.context() as names:
        for topic in ("CONDUCTOR_TOPIC", "AGENT_TOPIC"):
            names.setattr(client, topic, f"{getattr(client, topic)}-{uuid.uuid4().hex}")
        rpc.close()
        yield
        rpc.close()


class Wire:
    """A TCP relay to a server that can be cut and joined again, always on the same port.

    Whatever goes through is held for up to ``delay`` seconds.
    """

    def __init__(self, server_url: str) -> None:
        server = sa.make_url(server_url)
        self._server = (server.host, server.port)
        self._port = free_port()
        self._listening = socket.create_server(("127.0.0.1", self._port))
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.delay = 0.0
        self.url = server.set(host="127.0.0.1", port=self._port).render_as_string(
            hide_password=False
        )
        self.cut()

    def join(self) -> None:
        """Let connections through from now on."""
        self._listening = socket.create_server(("127.0.0.1", self._port))
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        with self._lock:
            for end in (self._listening, *self._ends):
                # Only shutdown ends what another thread is waiting for.
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
            self._ends.clear()

    def turn_to(self, port: int) -> None:
        """Break every connection, and let new ones through to another server."""
        self.cut()
        self._server = (self._server[0], port)
        self.join()

    def passes(self, data: bytes) -> bytes:
        """What goes through of what one end has sent.

        :raises OSError: the connection breaks
        """
        return data

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _address = listening.accept()
                threading.Thread(target=self._connect, args=(listening, near), daemon=True).start()

    def _connect(self, listening: socket.socket, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError), socket.create_connection(self._server) as far:
            with self._lock:
                # -1: cut meanwhile.
                if listening.fileno() < 0:
                    return
                self._ends |= {near, far}
            back = threading.Thread(target=self._relay, args=(far, near), daemon=True)
            back.start()
            self._relay(near, far)
            back.join()
            with self._lock:
                self._ends -= {near, far}

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                time.sleep(random.uniform(0, self.delay))
                sink.sendall(self.passes(data))
        # Also where the server broke off: the client has to see it.
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
