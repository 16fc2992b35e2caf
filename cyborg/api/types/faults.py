# SPDX-License-Identifier: Apache-2.0
"""The bodies of errors."""

from __future__ import annotations

from cyborg.api import versions
from cyborg.api.types.base import Changed, Field, Narrowed, Object


class Fault(Object):
    """An error up to 2.3."""

    error_message = Field(str, "The error; our own errors are JSON in this text.")


class Error(Object):
    """One error, by the guideline of the OpenStack API special interest group."""

    status = Field(int, "The HTTP status.")
    code = Field(str, "The service and the kind of error.")
    title = Field(str, "The phrase of the HTTP status.")
    detail = Field(str, "The error, in a sentence.")
    request_id = Field(str, "The id of the request, which the log has as well.")


class PlainError(Object):
    """An error as Keystone's middleware writes it, which every client reads."""

    code = Field(int, "The HTTP status.")
    title = Field(str, "The phrase of the HTTP status.")
    message = Field(str, "The error, in a sentence.")


class Errors(Object):
    """An error from 2.4."""

    errors = Field(Narrowed([Error], minItems=1), "The errors: always one.")
    error = Field(PlainError, "The same for clients that read no list.")


FAULT = Changed({versions.MIN: Fault, versions.REGULAR: Errors})


class Unauthorized(Object):
    """The answer of Keystone's middleware itself."""

    error = Field(PlainError, "The error.")
