# SPDX-License-Identifier: Apache-2.0
"""The errors that Cyborg raises; each class has the HTTP status of its answer."""

from __future__ import annotations

import http
import logging


def told(exc: Exception) -> str:
    """The sentence of an exception for a person; the name of its class too if it is no sentence."""
    text = str(exc)
    return text if " " in text else f"{type(exc).__name__}: {text}"


class CyborgError(Exception):
    """Base class of every error that Cyborg raises on purpose.

    The caller sees the message: it names the field or object and what to do, and never contains
    SQL, a traceback or another project's data.
    """

    code: int = http.HTTPStatus.INTERNAL_SERVER_ERROR
    #: At which a service says in its log that it goes on in spite of the error.
    level: int = logging.WARNING

    def __init__(self, sentence: str, field: str | None = None) -> None:
        self.sentence, self.field = sentence, field
        self.message = self.of_field(sentence)
        super().__init__(self.message)

    def of_field(self, sentence: str) -> str:
        """A sentence behind the name of the field of the request that the error is about."""
        return sentence if self.field is None else f"{self.field}: {sentence}"


class Invalid(CyborgError):
    """The request is invalid."""

    code = http.HTTPStatus.BAD_REQUEST


class RequestLate(CyborgError):
    """The body has not arrived within ``[api] request_timeout``."""

    code = http.HTTPStatus.REQUEST_TIMEOUT


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
    """The object does not exist, or this caller may not see it."""

    code = http.HTTPStatus.NOT_FOUND

    @classmethod
    def of(cls, kind: str, **key: str) -> NotFound:
        """The error for an object of ``kind`` looked up by one key, worded as clients expect it."""
        ((field, value),) = key.items()
        return cls(f"{kind} not found with {field}={value}")


class NotAcceptable(CyborgError):
    """The requested microversion is not supported, or too old for this feature."""

    code = http.HTTPStatus.NOT_ACCEPTABLE


class Conflict(CyborgError):
    """The request is valid, but the object's present state does not permit it."""

    code = http.HTTPStatus.CONFLICT


class Unresolved(CyborgError):
    """Some accelerator requests of the instance are not resolved yet."""

    code = http.HTTPStatus.LOCKED


class HostFailed(CyborgError):
    """A host failed to carry out what the request needs."""

    code = http.HTTPStatus.BAD_GATEWAY


class NotOffered(CyborgError):
    """The request is valid, but this cloud cannot carry it out."""

    code = http.HTTPStatus.NOT_IMPLEMENTED


class ServiceUnavailable(CyborgError):
    """Something that the request needs is down; a later attempt may succeed."""

    code = http.HTTPStatus.SERVICE_UNAVAILABLE


class DatabaseUnreachable(ServiceUnavailable):
    """The database cannot be reached: :mod:`cyborg.db` has said so in the log."""

    level = logging.DEBUG
    #: Whether what was asked for may be committed all the same.
    in_doubt = False


class Misconfigured(ServiceUnavailable):
    """A process cannot work before an operator mends its configuration, as the message says."""
