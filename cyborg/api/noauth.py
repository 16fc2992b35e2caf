# SPDX-License-Identifier: Apache-2.0
"""Without authentication: everybody who may reach the API at all is an administrator.

So only this machine may, under every server, and not every program on it: a web page in a browser
may send requests too, and by a name of its own that leads to this machine may read the answers.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from oslo_config import cfg

from cyborg.api import faults, versions
from cyborg.common import errors, host_header

_IDENTITY = ("HTTP_X_USER_ID", "HTTP_X_PROJECT_ID", "HTTP_X_ROLES", "HTTP_X_SERVICE_ROLES")
#: What a proxy adds to a request; with X-Forwarded all names that begin so.
_OF_PROXIES = ("HTTP_FORWARDED", "HTTP_VIA", "HTTP_X_FORWARDED", "HTTP_X_REAL_IP")
#: The identity of an administrator of a default project.
ADMIN = {
    "HTTP_X_USER_ID": "admin",
    "HTTP_X_PROJECT_ID": "default",
    "HTTP_X_ROLES": "admin,manager,member,reader,service",
    "HTTP_X_SERVICE_ROLES": "service",
}


class NoAuth:
    """Treats a caller without identity headers as the administrator of a default project."""

    def __init__(self, app: WSGIApplication, conf: cfg.ConfigOpts) -> None:
        self._app = OnlyOurs(app, conf)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        said: dict[str, Any] = {name: environ[name] for name in _IDENTITY if name in environ}
        return self._app({**environ, **(said or ADMIN)}, start_response)


class OnlyOurPages:
    """Refuses web pages of others."""

    def __init__(self, app: WSGIApplication, conf: cfg.ConfigOpts) -> None:
        self._app = app
        self._conf = conf

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            self._check(environ)
        except errors.Forbidden as error:
            version = versions.settled(environ.get(versions.ENVIRON_KEY))
            return faults.response(error, environ, version)(environ, start_response)
        return self._app(environ, start_response)

    def _check(self, environ: WSGIEnvironment) -> None:
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None and not self._is_own_origin(origin, environ):
            raise errors.Forbidden(
                f"There are no tokens, so web pages of {origin[:100]!r} are refused; see [cors] "
                "allowed_origin."
            )

    def _is_own_origin(self, origin: str, environ: WSGIEnvironment) -> bool:
        allowed = self._conf.cors.allowed_origin if "cors" in self._conf else None
        same = f"{environ['wsgi.url_scheme']}://{environ.get('HTTP_HOST', '')}"
        return origin.lower() == same.lower() or origin in (allowed or ())


class OnlyOurs(OnlyOurPages):
    """Refuses other machines too."""

    def _check(self, environ: WSGIEnvironment) -> None:
        if not self._conf.api.noauth_allow_remote:
            _check_client(environ)
        host = environ.get("HTTP_HOST", "")
        public = host_header.name_of(self._conf.api.public_endpoint or "")
        if not host_header.is_own(host, public, self._conf.host):
            raise errors.Forbidden(
                f"There is no authentication, so the Host {host[:100]!r} is refused: it is neither "
                "an address nor a name of this machine; see [api] public_endpoint."
            )
        super()._check(environ)


def _check_client(environ: WSGIEnvironment) -> None:
    forwarded = [name for name in environ if name.startswith(_OF_PROXIES)]
    # Over a Unix socket there is no address, under uWSGI one that is nobody's. Who listens there
    # has a proxy in front, and its clients may be anywhere.
    if forwarded or not is_loopback(environ.get("REMOTE_ADDR", "")):
        raise errors.Forbidden(
            "Without authentication the API serves only clients on this machine that connect to a "
            "loopback address, without a proxy. Set [api] auth_strategy to keystone or http_basic, "
            "or permit others with noauth_allow_remote."
        )


@functools.lru_cache(host_header.KEPT)
def is_loopback(host: str) -> bool:
    """True if only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(re.sub(r"^\[|\]$", "", host))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if address.version == 6 else None
    return (mapped or address).is_loopback
