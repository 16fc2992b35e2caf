# SPDX-License-Identifier: Apache-2.0
"""The built-in HTTP server: threads of one process, for sites without a WSGI server."""

from __future__ import annotations

import ipaddress
import logging
import ssl
import threading
from wsgiref.types import WSGIApplication

from cheroot import wsgi
from cheroot.ssl import builtin
from oslo_config import cfg

LOG = logging.getLogger(__name__)

#: Bytes of the largest request line with headers: many times a token of Keystone.
_HEADERS_MAX = 128 * 1024
#: Seconds for which a stop waits for the requests that are being answered.
_STOP_SECONDS = 10


class UnsafeAddress(Exception):
    """Everyone who can reach the address would be an administrator."""


class NoCertificate(Exception):
    """HTTPS is configured without the files that it needs."""


def check_address(conf: cfg.ConfigOpts, host: str) -> None:
    """Check that it is safe to listen on ``host``.

    :raises UnsafeAddress: callers are not authenticated, and other machines can reach the address
    """
    if conf.api.auth_strategy != "noauth" or conf.api.noauth_allow_remote:
        return
    if not is_loopback(host):
        raise UnsafeAddress(
            f"[api] auth_strategy is noauth, so whoever reaches {host} would be an administrator. "
            "Listen on 127.0.0.1, set auth_strategy to keystone, or permit it with "
            "noauth_allow_remote."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class _LoggingServer(wsgi.Server):
    """Cheroot's server with our log: it would write to standard error otherwise."""

    def error_log(
        self,
        msg: str = "",
        level: int = logging.INFO,
        traceback: bool = False,  # noqa: FBT001, FBT002 - cheroot's signature
    ) -> None:
        LOG.log(level, msg.strip(), exc_info=traceback)


def _tls(conf: cfg.ConfigOpts) -> builtin.BuiltinSSLAdapter:
    """The TLS that ``[ssl]`` configures.

    :raises NoCertificate, OSError: files are missing or cannot be used
    """
    if not (conf.ssl.cert_file and conf.ssl.key_file):
        raise NoCertificate("[api] enable_ssl_api needs [ssl] cert_file and [ssl] key_file.")
    adapter = builtin.BuiltinSSLAdapter(conf.ssl.cert_file, conf.ssl.key_file)
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
        self._server = _LoggingServer(
            (host, port),
            app,
            numthreads=conf.api.threads,
            request_queue_size=128,
            shutdown_timeout=_STOP_SECONDS,
        )
        self._server.max_request_header_size = _HEADERS_MAX
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
