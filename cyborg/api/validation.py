# SPDX-License-Identifier: Apache-2.0
"""Validation of a request by JSON Schemas, and conversion of the texts of its URL."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from oslo_utils import uuidutils
from webob import multidict

from cyborg.api import arguments, refusals
from cyborg.common import errors

Schema = Mapping[str, Any]

#: Keyword of a schema for texts with several items: the text between the items.
SEPARATOR = "separator"

_TRUTH = {"true": True, "false": False}
_FORMATS = jsonschema.FormatChecker(formats=())


class Prepared(dict[str, Any]):
    """A schema with the validator of it, which is made once."""

    @functools.cached_property
    def validator(self) -> Any:
        """The validator of data against the schema."""
        return _Validator(self, format_checker=_FORMATS)


def check(
    schema: Schema, data: Any, *, field: str = "", prefix: str = "", is_old: bool = False
) -> None:
    """Validate ``data``, which messages call ``field``, against the schema.

    ``is_old`` is as in :func:`refusals.sentence`.

    :raises Invalid: it does not match
    """
    prepared = schema if isinstance(schema, Prepared) else Prepared(schema)
    error = next(prepared.validator.iter_errors(data), None)
    if error is not None:
        raise errors.Invalid(prefix + refusals.sentence(error, field, is_old=is_old))


def read_query(
    schemas: Schema, given: multidict.MultiDict[str, str], *, skip_empty: bool
) -> dict[str, Any]:
    """The arguments in the types that their ``schemas`` name, not yet validated.

    With ``skip_empty`` one without a value counts as absent, unless it must be a uuid.
    """
    read: dict[str, Any] = {}
    for name in given:
        schema = schemas.get(name, {})
        values = given.getall(name)
        if SEPARATOR in schema and len(values) == 1:
            values = [item.strip() for item in values[0].split(schema[SEPARATOR])]
        if schema.get("type") == "array":
            read[name] = [typed(schema["items"], value) for value in values]
        elif len(values) > 1:
            raise errors.Invalid(f'Argument "{name[: refusals.SHOWN]}" must be given once.')
        elif values[0] or not skip_empty or schema.get("format") == "uuid":
            read[name] = typed(schema, values[0])
    return read


def typed(schema: Schema, text: str) -> Any:
    """The value of a text of the URL; the text itself if it is not of the schema's type."""
    if schema.get("type") == "integer" and text.isascii() and text.isdigit():
        return int(text) if len(text) <= arguments.TEXT_MAX else text
    if schema.get("type") == "boolean":
        return _TRUTH.get(text.lower(), text)
    if schema.get("format") == "uuid" and uuidutils.is_uuid_like(text):
        return arguments.stored_uuid(text)
    return text


@_FORMATS.checks("uuid")
def _is_uuid(value: object) -> bool:
    return not isinstance(value, str) or uuidutils.is_uuid_like(value)


def _pattern(
    _validator: Any, pattern: str, text: object, _schema: Schema
) -> Iterator[jsonschema.ValidationError]:
    # In JSON Schema a dollar matches only the end of the text, not a line break before it.
    if isinstance(text, str) and not re.search(pattern.replace("$", r"\Z"), text):
        yield jsonschema.ValidationError("The pattern does not match.")


_Validator: Any = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator, {"pattern": _pattern}
)
