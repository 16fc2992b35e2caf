# SPDX-License-Identifier: Apache-2.0
"""Exceptions as answers: the one place in which an error gets its status and body."""

from __future__ import annotations

import http
import json
import logging
from collections.abc import Mapping
from typing import Any

import webob
from webob import exc as webob_exc

from cyborg.api import versions
from cyborg.common import errors

LOG = logging.getLogger(__name__)

#: The key in the WSGI environment of the errors that answers to the request tell.
ENVIRON_KEY = "cyborg.said"

Known = errors.CyborgError | webob_exc.WSGIHTTPException

#: Seconds after which a client may repeat a request that failed because of a service behind us.
_RETRY_AFTER = "5"
#: Characters of a path that an answer repeats.
_PATH_MAX = 255


def response(
    error: Exception, environ: Mapping[str, Any], version: versions.Version
) -> webob.Response:
    """The answer for ``error``, in the form of microversion ``version``."""
    known = _known(error, environ)
    environ.get(ENVIRON_KEY, []).append(known)
    answer = webob.Response(status=int(known.code), content_type="application/json")
    document = _regular if version >= versions.REGULAR else _nested
    answer.body = json.dumps(document(known, environ)).encode()
    if isinstance(known, errors.ServiceUnavailable):
        answer.headers["Retry-After"] = _RETRY_AFTER
    if isinstance(known, webob_exc.WSGIHTTPException) and known.allow:
        answer.allow = known.allow
    return answer


def _known(error: Exception, environ: Mapping[str, Any]) -> Known:
    if isinstance(error, errors.ServiceUnavailable):
        # One line: while the other service is away, each request has it.
        cause = str(error.__cause__ or "").partition("\n")[0]
        why = f" ({cause})" if cause else ""
        LOG.log(error.level, "Request not served: %s%s", error.message, why)
    if isinstance(error, errors.CyborgError | webob_exc.WSGIHTTPException):
        return error
    # An unexpected error may name tables, hosts or other projects' objects: it is only logged.
    request_id = _request_id(environ)
    LOG.error("Request %s failed", request_id, exc_info=error)
    return errors.CyborgError(f"Internal error; the log tells more of request {request_id}.")


def _request_id(environ: Mapping[str, Any]) -> str:
    return str(environ.get("openstack.request_id", ""))


def _regular(error: Known, environ: Mapping[str, Any]) -> dict[str, Any]:
    """The body from 2.4 on, by the errors guideline of the OpenStack API special interest group.

    Released clients show the text under ``error``: openstacksdk does not read ``errors``, and
    keystoneauth shows nothing but the title of what it finds there.
    """
    status = http.HTTPStatus(error.code)
    if isinstance(error, errors.CyborgError):
        detail = error.message
    else:
        why = error.detail or status.description
        path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}"
        # WSGI passes on bytes as characters.
        text = path.encode("latin-1").decode(errors="replace")[:_PATH_MAX]
        detail = f"{environ['REQUEST_METHOD']} {text}: {why}."
    slug = status.phrase.lower().replace(" ", "-")
    return {
        "errors": [
            {
                "status": int(status),
                "code": f"{versions.SERVICE_TYPE}.{slug}",
                "title": status.phrase,
                "detail": detail,
                "request_id": _request_id(environ),
            }
        ],
        "error": {"code": int(status), "title": status.phrase, "message": detail},
    }


def _nested(error: Known, environ: Mapping[str, Any]) -> dict[str, Any]:
    """The body up to 2.3: a text, which for our own errors is JSON again."""
    if isinstance(error, webob_exc.WSGIHTTPException):
        text = error.plain_body(dict(environ))
    elif isinstance(error, errors.Unresolved):
        text = "null"
    elif isinstance(error, versions.VersionUnreadable | versions.VersionNotServed):
        text = f"406 Not Acceptable\n\n{error.message}"
    else:
        side = "Client" if error.code < 500 else "Server"
        fault = {"faultcode": side, "faultstring": error.message, "debuginfo": None}
        text = json.dumps(fault)
    return {"error_message": text}
