# SPDX-License-Identifier: Apache-2.0
"""Data of a request held against JSON Schemas, and texts of its URL read by them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from oslo_utils import uuidutils
from webob import multidict

from cyborg import errors
from cyborg.api import arguments, refusals

Schema = Mapping[str, Any]

#: Keyword of a schema for texts that hold several items: what stands between these.
SEPARATOR = "separator"

_TRUTH = {"true": True, "false": False}
_FORMATS = jsonschema.FormatChecker(formats=())


def check(schema: Schema, data: Any, *, field: str = "", prefix: str = "") -> None:
    """Return when ``data`` is as the schema says; ``field`` is what a message calls it.

    :raises Invalid: it is not
    """
    error = next(_Validator(schema, format_checker=_FORMATS).iter_errors(data), None)
    if error is not None:
        raise errors.Invalid(prefix + refusals.sentence(error, field))


def read_query(
    schemas: Schema, given: multidict.MultiDict[str, str], *, skip_empty: bool
) -> dict[str, Any]:
    """The arguments in the types that their ``schemas`` name, not yet checked.

    With ``skip_empty`` one without a value counts as absent, except where it must be a uuid.
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
    """What a text of the URL stands for; the text itself where it is nothing of that type."""
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
    # In the dialect of JSON Schema a dollar is the end of the text, no line break before it.
    if isinstance(text, str) and not re.search(pattern.replace("$", r"\Z"), text):
        yield jsonschema.ValidationError("The pattern does not match.")


_Validator: Any = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator, {"pattern": _pattern}
)
