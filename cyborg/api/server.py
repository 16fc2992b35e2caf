# SPDX-License-Identifier: Apache-2.0
"""The built-in HTTP server: threads of one process, for sites without a WSGI server.

It is waitress, which reads requests and sends answers in one thread, so that a slow client holds
none of those that answer. This module and :mod:`cyborg.api.connections` bound what clients take.
"""

from __future__ import annotations

import collections
import logging
import math
import socket
import ssl
import threading
import time
from wsgiref.types import WSGIApplication

from oslo_config import cfg
from waitress import adjustments, task, wasyncore
from waitress import server as waitress

from cyborg.api import middleware, noauth
from cyborg.api.connections import CROWDED, Busy, Connection, Late, TlsConnection, Warnings
from cyborg.common import errors

LOG = logging.getLogger(__name__)

#: Seconds for which a stop waits for the requests that are being answered.
_STOP_SECONDS = 10
#: Requests that have arrived and wait for a thread; others are answered with 503.
_QUEUE_MAX = 256
#: Connections in all; the oldest that waits for its client is closed if there are more.
_CONNECTIONS_MAX = 512
#: Bytes of requests that are arriving and of answers that are not taken yet.
_HELD_MAX = 32 * 1024 * 1024
#: Bytes of the largest request line with headers: many times a token of Keystone.
_HEAD_MAX = 64 * 1024
_PIECE = 64 * 1024
#: Larger than all that is kept in memory: waitress would use temporary files for the rest.
_NO_LIMIT = 2**40
#: Seconds after which lateness is looked for again.
_TICK = 0.25

_BUSY = "More requests have arrived than can wait for an answer; try again later."
_FULL = "The requests that are arriving have more bytes than are kept; try again later."

# It warns of each request that waits for a thread.
logging.getLogger("waitress.queue").setLevel(logging.ERROR)


class UnsafeAddress(errors.Misconfigured):
    """Everyone who can reach the address would be an administrator."""


class NoCertificate(errors.Misconfigured):
    """HTTPS is configured without the files that it needs."""


def check_address(conf: cfg.ConfigOpts, host: str) -> None:
    """Raise UnsafeAddress if nobody is authenticated, and other machines reach ``host``."""
    is_remote = not noauth.is_loopback(host)
    if conf.api.auth_strategy == "http_basic" and is_remote and not conf.api.enable_ssl_api:
        LOG.warning("Passwords come to %s without TLS; see [api] enable_ssl_api", host)
    if conf.api.auth_strategy != "noauth" or conf.api.noauth_allow_remote:
        return
    if is_remote:
        raise UnsafeAddress(
            f"[api] auth_strategy is noauth, so everybody who reaches {host} would be an "
            "administrator. "
            "Listen on 127.0.0.1, set auth_strategy to keystone or http_basic, or permit it with "
            "noauth_allow_remote."
        )


class _Adjustments(adjustments.Adjustments):
    """The settings of waitress, and ours."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(
            threads=conf.api.threads,
            url_scheme="https" if conf.api.enable_ssl_api else "http",
            # [oslo_middleware] and noauth look at them.
            clear_untrusted_proxy_headers=False,
            max_request_header_size=_HEAD_MAX,
            max_request_body_size=_NO_LIMIT,
            inbuf_overflow=_NO_LIMIT,
            outbuf_overflow=_NO_LIMIT,
            outbuf_high_watermark=_NO_LIMIT,
            connection_limit=_NO_LIMIT,
            recv_bytes=_PIECE,
            log_socket_errors=False,
            asyncore_use_poll=True,
            ident="",
        )
        self.conf = conf


class _HttpServer(waitress.TcpWSGIServer):
    """Waitress with bounds for all clients together."""

    #: Waitress would clean up while it collects what to poll, where nothing may be closed.
    next_channel_cleanup = math.inf

    def __init__(self, conf: cfg.ConfigOpts, app: WSGIApplication, listener: socket.socket) -> None:
        self.conf = conf
        self._end_by: float | None = None
        self._looked = 0.0
        self._checks = task.ThreadedTaskDispatcher()
        self._checks.set_thread_count(1)
        self._crowded = Warnings(
            "%s has more connections than [api] max_connections_per_peer: one of them is sent away"
        )
        self._untaken = Warnings(
            "A connection from %s is closed: it leaves %d bytes of an answer; see [api] "
            "request_timeout"
        )
        self._filled = Warnings(
            "A connection from %s is closed: its address has most of the %d bytes of requests that "
            "are arriving and of answers that are not taken"
        )
        self.channel_class = TlsConnection if conf.api.enable_ssl_api else Connection
        super().__init__(
            app,
            {},
            _sock=listener,
            adj=_Adjustments(conf),
            sockinfo=(listener.family, listener.type, listener.proto, listener.getsockname()),
            bind_socket=False,
        )

    def add_task(self, task: Connection) -> None:
        """Let a thread answer the first request of a connection, when the last answer is sent."""
        request = task.requests[0]
        threads = self.task_dispatcher
        if task.total_outbufs_len:
            task.postponed = True
            return
        if request.error or request.path.rstrip("/") == middleware.HEALTHCHECK_PATH:
            threads = self._checks
        elif len(threads.queue) >= _QUEUE_MAX:
            request.error, threads = Busy(_BUSY), self._checks
        threads.add_task(task)

    def make_room(self, newest: Connection) -> None:
        """Send the oldest connection away if there are too many, of one address or in all."""
        everyone = list(self.active_channels.values())
        if len(everyone) > _CONNECTIONS_MAX:
            leaving = next((each for each in everyone if each.leaves and each.is_idle), None)
            if leaving is not None:
                leaving.end()
                everyone.remove(leaving)
        mine = [each for each in everyone if each.peer == newest.peer and not each.leaves]
        most = self.conf.api.max_connections_per_peer
        if most and len(mine) > most:
            self._crowded.warn(newest.peer)
            _send_one_away(mine, newest)
        elif len(everyone) > _CONNECTIONS_MAX:
            _send_one_away(everyone, newest)

    def _end_late_ones(self) -> None:
        seconds = self.conf.api.request_timeout
        idle = [each for each in self.active_channels.values() if each.is_idle]
        for each in idle:
            if each.is_late():
                if each.total_outbufs_len:
                    self._untaken.warn(each.peer, each.total_outbufs_len)
                each.refuse(Late(f"A request must arrive within {seconds:g} seconds."))
        self._bound_bytes([each for each in idle if each.held])

    def _bound_bytes(self, holders: list[Connection]) -> None:
        """The address that holds most loses what holds most, until all hold little enough."""
        held = {each: each.held for each in holders}
        of_peer = collections.Counter[str]()
        for each, count in held.items():
            of_peer[each.peer] += count
        limit = max(_HELD_MAX, 4 * self.conf.api.max_request_body_size)
        while sum(held.values()) > limit and len(held) > 1:
            one = max(held, key=lambda each: (of_peer[each.peer], held[each]))
            self._filled.warn(one.peer, sum(held.values()))
            of_peer[one.peer] -= held.pop(one)
            one.refuse(Busy(_FULL))

    def serve(self) -> None:
        """Serve until :meth:`stop`, and then until the requests that have arrived are answered."""
        while self._end_by is None:
            self._turn()
        self.del_channel()
        self.socket.close()
        while time.monotonic() < self._end_by and self._busy_ones():
            self._turn()
        for dispatcher in (self.task_dispatcher, self._checks):
            dispatcher.shutdown(timeout=1)
        wasyncore.close_all(self._map, ignore_all=True)

    def _turn(self) -> None:
        try:
            wasyncore.loop(timeout=_TICK, use_poll=True, map=self._map, count=1)
        except Exception:
            # Whatever one connection does, the others are served.
            LOG.exception("A connection has failed")
            time.sleep(_TICK)
        if time.monotonic() > self._looked + _TICK:
            self._looked = time.monotonic()
            self._end_late_ones()

    def _busy_ones(self) -> bool:
        for each in list(self.active_channels.values()):
            if each.lingers or not (each.requests or each.writable()):
                each.end()
        return bool(self.active_channels)

    def stop(self) -> None:
        """Stop listening, and let :meth:`serve` come to its end."""
        # Seen at the next tick: what would wake the thread may be closed by it at that moment.
        self._end_by = time.monotonic() + _STOP_SECONDS


def _send_one_away(connections: list[Connection], newest: Connection) -> None:
    """The oldest without a whole request, or the newest if all others have one."""
    oldest = next(each for each in connections if each.awaits_request)
    if oldest is newest:
        newest.answer(Busy(CROWDED))
    else:
        oldest.refuse(Busy(CROWDED))


def _tls(conf: cfg.ConfigOpts) -> ssl.SSLContext:
    """The TLS that ``[ssl]`` configures.

    :raises NoCertificate, OSError: files are missing or cannot be used
    """
    if not (conf.ssl.cert_file and conf.ssl.key_file):
        raise NoCertificate("[api] enable_ssl_api needs [ssl] cert_file and [ssl] key_file.")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=conf.ssl.ca_file)
    context.load_cert_chain(conf.ssl.cert_file, conf.ssl.key_file)
    if conf.ssl.ca_file:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Server:
    """Answers HTTP with a WSGI application until it is stopped.

    :raises NoCertificate, OSError: HTTPS is configured and the certificate cannot be used
    """

    def __init__(self, conf: cfg.ConfigOpts, app: WSGIApplication, host: str, port: int) -> None:
        check_address(conf, host)
        self._conf = conf
        self._app = app
        self._address = host.strip("[]"), port
        self._tls = _tls(conf) if conf.api.enable_ssl_api else None
        self._server: _HttpServer | None = None
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)

    def listen(self) -> int:
        """Open the socket and return its port: a free one if 0 was given.

        :raises OSError: the address cannot be listened on
        """
        family, *_, address = socket.getaddrinfo(
            *self._address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address[:2], family=family, backlog=128)
        host, port = listener.getsockname()[:2]
        if self._tls:
            # The handshake is left to the connection: a silent client would stop all others here.
            listener = self._tls.wrap_socket(
                listener, server_side=True, do_handshake_on_connect=False
            )
        self._server = _HttpServer(self._conf, self._app, listener)
        LOG.info("Listening on %s port %d", host, port)
        return int(port)

    def start(self) -> None:
        """Answer requests, after :meth:`listen`."""
        self._thread.start()

    def _serve(self) -> None:
        if self._server is not None:
            self._server.serve()

    def stop(self) -> None:
        """Stop listening, and wait until the requests under way are answered."""
        if self._server is not None and self._thread.is_alive():
            self._server.stop()
            self._thread.join()
