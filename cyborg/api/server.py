# SPDX-License-Identifier: Apache-2.0
"""The built-in HTTP server: threads of one process, for sites without a WSGI server.

:mod:`cyborg.api.gate` reads the requests and sends the answers, so that a slow client holds none
of the threads.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import ssl
import threading
from typing import Any
from wsgiref.types import WSGIApplication

from cheroot import errors as cheroot_errors
from cheroot import wsgi
from cheroot.ssl import builtin
from oslo_config import cfg

from cyborg.api import bounds, gate, middleware, noauth, request_reader
from cyborg.common import errors

LOG = logging.getLogger(__name__)

#: Seconds for which a stop waits for the requests that are being answered.
_STOP_SECONDS = 10
#: Requests that have arrived and wait for a thread; others are answered with 503.
_QUEUE_MAX = 256
#: Health checks that wait for their thread, of all and of one address.
_CHECKS_MAX = 32
_CHECKS_OF_PEER_MAX = 8
#: Connections that are kept for a next request.
_KEPT_MAX = 64


class UnsafeAddress(errors.Misconfigured):
    """Everyone who can reach the address would be an administrator."""


class NoCertificate(errors.Misconfigured):
    """HTTPS is configured without the files that it needs."""


def check_address(conf: cfg.ConfigOpts, host: str) -> None:
    """Check that it is safe to listen on ``host``.

    :raises UnsafeAddress: callers are not authenticated, and other machines can reach the address
    """
    if conf.api.auth_strategy != "noauth" or conf.api.noauth_allow_remote:
        return
    if not noauth.is_loopback(host):
        raise UnsafeAddress(
            f"[api] auth_strategy is noauth, so whoever reaches {host} would be an administrator. "
            "Listen on 127.0.0.1, set auth_strategy to keystone, or permit it with "
            "noauth_allow_remote."
        )


class _HttpServer(wsgi.Server):
    """Cheroot's server behind our gate, and with our log: it would write to standard error."""

    ConnectionClass = request_reader.Connection
    keep_alive_conn_limit = _KEPT_MAX

    def __init__(self, conf: cfg.ConfigOpts, app: WSGIApplication, host: str, port: int) -> None:
        super().__init__(
            (host, port),
            app,
            numthreads=conf.api.threads,
            request_queue_size=128,
            shutdown_timeout=_STOP_SECONDS,
            accepted_queue_size=_QUEUE_MAX,
            accepted_queue_timeout=0,
        )
        self._conf = conf
        self.ledger = bounds.Ledger()
        self._gate = gate.Gate(conf, self._hand_over, self.ledger)
        self._checks: queue.Queue[request_reader.Connection | None] = queue.Queue(_CHECKS_MAX)
        self._checker = threading.Thread(target=self._answer_checks, name="check", daemon=True)

    def serve(self) -> None:
        """Serve until stopped."""
        self._checker.start()
        self._gate.start()
        super().serve()

    def stop(self) -> None:
        """Stop listening, and return when the requests that have arrived are answered."""
        if not self.ready:
            return
        self._gate.stop()
        with contextlib.suppress(queue.Full):
            self._checks.put(None, timeout=_STOP_SECONDS)
        super().stop()
        self._gate.end(_STOP_SECONDS)

    def process_conn(self, conn: request_reader.Connection) -> None:
        """Take a new connection."""
        self._gate.admit(conn)

    def put_conn(self, conn: request_reader.Connection) -> None:
        """Take back a connection whose request was answered."""
        self._gate.admit(conn)

    @property
    def can_add_keepalive_connection(self) -> bool:
        """Whether a connection may be kept when its request is answered."""
        return self.ready and self._gate.waiting < self.keep_alive_conn_limit

    def _hand_over(self, connection: request_reader.Connection) -> None:
        head = connection.arrival.head
        if head and head.path.rstrip("/") == middleware.HEALTHCHECK_PATH:
            self._take_check(connection)
        else:
            # Cheroot would answer 503 itself if it is full, and leave the connection open.
            self.requests.put(connection)

    def _take_check(self, connection: request_reader.Connection) -> None:
        """Let a check wait for its thread.

        :raises queue.Full: too many wait, or too many of one address that leave others no place
        """
        with self._checks.mutex:
            waiting = [each for each in self._checks.queue if each is not None]
        if sum(each.peer == connection.peer for each in waiting) >= _CHECKS_OF_PEER_MAX:
            raise queue.Full
        self._checks.put_nowait(connection)

    def _answer_checks(self) -> None:
        """Answer health checks, also while all other threads are busy."""
        while (connection := self._checks.get()) is not None:
            keep = False
            try:
                keep = connection.communicate()  # type: ignore[no-untyped-call]
            except Exception:
                LOG.exception("A health check from %s failed", connection.peer)
            if keep:
                self.put_conn(connection)
            else:
                connection.close()

    def error_log(
        self,
        msg: str = "",
        level: int = logging.INFO,
        traceback: bool = False,  # noqa: FBT001, FBT002 - cheroot's signature
    ) -> None:
        LOG.log(level, msg.strip(), exc_info=traceback)


class _Tls(builtin.BuiltinSSLAdapter):
    """TLS whose handshake is left to the gate: a silent client would stop all others here."""

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, Any]]:
        """The socket before its handshake, and no facts about the client yet."""
        try:
            wrapped = self.context.wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False
            )
        except (OSError, ValueError) as exc:
            raise cheroot_errors.FatalSSLAlert(*exc.args) from exc
        return wrapped, {}


def _tls(conf: cfg.ConfigOpts) -> _Tls:
    """The TLS that ``[ssl]`` configures.

    :raises NoCertificate, OSError: files are missing or cannot be used
    """
    if not (conf.ssl.cert_file and conf.ssl.key_file):
        raise NoCertificate("[api] enable_ssl_api needs [ssl] cert_file and [ssl] key_file.")
    adapter = _Tls(conf.ssl.cert_file, conf.ssl.key_file)
    if conf.ssl.ca_file:
        adapter.context.load_verify_locations(conf.ssl.ca_file)
        adapter.context.verify_mode = ssl.CERT_REQUIRED
    return adapter


class Server:
    """Answers HTTP with a WSGI application until it is stopped.

    :raises NoCertificate, OSError: HTTPS is configured and the certificate cannot be used
    """

    def __init__(self, conf: cfg.ConfigOpts, app: WSGIApplication, host: str, port: int) -> None:
        check_address(conf, host)
        self._server = _HttpServer(conf, app, host, port)
        if conf.api.enable_ssl_api:
            self._server.ssl_adapter = _tls(conf)
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)

    def listen(self) -> int:
        """Open the socket and return its port: a free one if 0 was given.

        :raises OSError: the address cannot be listened on
        """
        self._server.prepare()
        host, port = self._server.bind_addr[:2]
        LOG.info("Listening on %s port %d", host, port)
        return int(port)

    def start(self) -> None:
        """Answer requests, after :meth:`listen`."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening and return when the requests under way are answered."""
        self._server.stop()
        self._thread.join()
