# SPDX-License-Identifier: Apache-2.0
"""HTTP Basic authentication: each name with a password in the operator's file is an administrator.

Browsers add a password to what web pages of others ask for, so those pages are refused.
"""

from __future__ import annotations

import functools
import logging
import pathlib
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import webob.exc
from oslo_config import cfg
from oslo_middleware import basic_auth
from oslo_middleware import exceptions as oslo_exceptions

from cyborg.api import faults, noauth, versions
from cyborg.common import errors

LOG = logging.getLogger(__name__)

_CHALLENGE = ("WWW-Authenticate", 'Basic realm="Cyborg", charset="UTF-8"')
#: Names and passwords that need no look at the file again: such a look takes 50 ms and more.
_KEPT = 256


class HttpBasic:
    """Passes on the requests of those who know a password."""

    def __init__(self, app: WSGIApplication, conf: cfg.ConfigOpts) -> None:
        self._app = noauth.OnlyOurPages(app, conf)
        self._file = pathlib.Path(conf.api.http_basic_auth_user_file)
        try:
            basic_auth.validate_auth_file(str(self._file))
        except (oslo_exceptions.ConfigInvalid, webob.exc.HTTPError) as exc:
            raise errors.Misconfigured(
                f"[api] http_basic_auth_user_file: {self._file} cannot be used: {exc}. Each line "
                "must be a name, a colon and a bcrypt digest, as htpasswd -B writes it."
            ) from exc

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            given = basic_auth.parse_token(basic_auth.parse_header(environ))
            name = _checked(self._file, self._file.stat().st_mtime_ns, *given)
        except OSError as exc:
            LOG.warning("The file of passwords cannot be read, so nobody is let in: %s", exc)
            return _refuse(environ, start_response)
        except webob.exc.HTTPError:
            return _refuse(environ, start_response)
        own = noauth.ADMIN | {"HTTP_X_USER_ID": name, "HTTP_X_USER_NAME": name}
        return self._app({**environ, **own}, start_response)


@functools.lru_cache(_KEPT)
def _checked(file: pathlib.Path, _changed_ns: int, name: str, password: bytes) -> str:
    """The name, if the file has it with this password; otherwise raises an HTTPError."""
    basic_auth.authenticate(str(file), name, password)
    return name


def _refuse(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    refusal = webob.exc.HTTPUnauthorized("Send a name and its password by HTTP Basic")
    version = versions.settled(environ.get(versions.ENVIRON_KEY))
    answer = faults.response(refusal, environ, version)
    answer.headers.update([_CHALLENGE])
    return answer(environ, start_response)
