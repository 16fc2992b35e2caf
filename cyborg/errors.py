# SPDX-License-Identifier: Apache-2.0
"""The error tree. Each class knows the HTTP code its instances are answered with."""

from __future__ import annotations

import http


class CyborgError(Exception):
    """Base of every error that Cyborg raises on purpose.

    The message is shown to the caller: it names the field or object and the remedy, and never
    holds SQL, a traceback or another project's data.
    """

    code: int = http.HTTPStatus.INTERNAL_SERVER_ERROR

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Invalid(CyborgError):
    """The request is wrong in itself."""

    code = http.HTTPStatus.BAD_REQUEST


class RequestTooLarge(CyborgError):
    """The body is larger than ``[api] max_request_body_size`` permits."""

    code = http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class UnsupportedMediaType(CyborgError):
    """The body is not declared as JSON."""

    code = http.HTTPStatus.UNSUPPORTED_MEDIA_TYPE


class Forbidden(CyborgError):
    """The caller may not do this."""

    code = http.HTTPStatus.FORBIDDEN


class NotFound(CyborgError):
    """The object does not exist, or not for this caller."""

    code = http.HTTPStatus.NOT_FOUND

    @classmethod
    def of(cls, kind: str, **key: str) -> NotFound:
        """The error for ``kind`` looked up by one key, worded as clients expect it."""
        ((field, value),) = key.items()
        return cls(f"{kind} not found with {field}={value}")


class NotAcceptable(CyborgError):
    """The microversion asked for is not served, or too old for this feature."""

    code = http.HTTPStatus.NOT_ACCEPTABLE


class Conflict(CyborgError):
    """The request is sound but the object's present state forbids it."""

    code = http.HTTPStatus.CONFLICT


class Unresolved(CyborgError):
    """Some accelerator requests of the instance are not resolved yet."""

    code = http.HTTPStatus.LOCKED


class HostFailed(CyborgError):
    """A host was asked to do what the request needs, and could not."""

    code = http.HTTPStatus.BAD_GATEWAY


class NotOffered(CyborgError):
    """The request is sound, and nothing here can carry it out."""

    code = http.HTTPStatus.NOT_IMPLEMENTED


class ServiceUnavailable(CyborgError):
    """A part that the request needs is down; trying again later may succeed."""

    code = http.HTTPStatus.SERVICE_UNAVAILABLE
