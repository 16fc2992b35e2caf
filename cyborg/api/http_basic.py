# SPDX-License-Identifier: Apache-2.0
"""HTTP Basic authentication: each name with a password in the operator's file is an administrator.

Browsers add a password to what web pages of others ask for, so those pages are refused.
"""

from __future__ import annotations

import functools
import logging
import os
import pathlib
import threading
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
#: Errors of a failed login: of the library, and of bcrypt, which takes at most 72 bytes.
_FAULTS = (webob.exc.HTTPError, ValueError)

# It tells each name that is not known, however long.
logging.getLogger(basic_auth.__name__).setLevel(logging.WARNING)


class HttpBasic:
    """Passes on the requests of those who know a password."""

    def __init__(self, app: WSGIApplication, conf: cfg.ConfigOpts) -> None:
        self._app = noauth.OnlyOurPages(app, conf)
        self._file = pathlib.Path(conf.api.http_basic_auth_user_file)
        #: Threads that may look into the file at once: others serve those who are known.
        self._looks = threading.Semaphore(max(1, conf.api.threads // 2))
        self._checked = functools.lru_cache(_KEPT)(self._check)
        try:
            basic_auth.validate_auth_file(str(self._file))
        except (oslo_exceptions.ConfigInvalid, *_FAULTS) as exc:
            raise errors.Misconfigured(
                f"[api] http_basic_auth_user_file: {self._file} cannot be used: {exc}. Each line "
                "must be a name, a colon and a bcrypt digest, as htpasswd -B writes it."
            ) from exc

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            given = basic_auth.parse_token(basic_auth.parse_header(environ))
            name = self._checked(_version(self._file.stat()), *given)
        except OSError as exc:
            LOG.warning("The file of passwords cannot be read, so nobody is let in: %s", exc)
            return _refuse(environ, start_response)
        except _FAULTS:
            return _refuse(environ, start_response)
        own = noauth.ADMIN | {"HTTP_X_USER_ID": name, "HTTP_X_USER_NAME": name}
        return self._app({**environ, **own}, start_response)

    def _check(self, _version: tuple[int, ...], name: str, password: bytes) -> str:
        """The name, if this version of the file has it with the password.

        :raises HTTPError, ValueError: it has not
        :raises ServiceUnavailable: too many others are being looked for
        """
        # Apache passes over lines that begin so.
        if not name.strip() or name.startswith("#"):
            raise webob.exc.HTTPUnauthorized
        if not self._looks.acquire(blocking=False):
            raise errors.ServiceUnavailable("Too many passwords are being checked; try again.")
        try:
            basic_auth.authenticate(str(self._file), name, password)
        finally:
            self._looks.release()
        return name


def _version(file: os.stat_result) -> tuple[int, ...]:
    """The version of a file: it differs after each change, also if the time is set back."""
    return file.st_mtime_ns, file.st_ctime_ns, file.st_ino, file.st_size


def _refuse(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    refusal = webob.exc.HTTPUnauthorized("Send a name and its password by HTTP Basic")
    version = versions.settled(environ.get(versions.ENVIRON_KEY))
    answer = faults.response(refusal, environ, version)
    answer.headers.update([_CHALLENGE])
    return answer(environ, start_response)
