# SPDX-License-Identifier: Apache-2.0
"""Violations of a schema as sentences that name the field and the remedy.

A schema may have the sentence itself, under :data:`KEYWORD`: one for all its keywords, or one by
keyword. A sentence may contain ``{field}``, ``{value}``, ``{name}`` (what follows the colon of a
value), ``{missing}``, ``{extra}``, ``{known}``, ``{wanted}``, ``{least}`` and ``{most}``.
"""

from __future__ import annotations

from typing import Any

import jsonschema

#: Keyword of a schema for the sentence with which a violation is answered.
KEYWORD = "refusal"
#: Characters of a client's text that a message repeats.
SHOWN = 255

_UUID = "{field} must be a UUID, not '{value}'."
_NUMBER = "{field} must be a whole number from {least} to {most}, not '{value}'."
#: Upstream's sentences for clients of 2.0 to 2.3, some of which look for the beginning.
_UPSTREAM = {
    _UUID: "Invalid input for field/attribute {last}. Value: '{value}'. unable to convert to uuid. "
    "Error: Expected a uuid but received {value}.",
    _NUMBER: "Invalid input for field/attribute {last}. Value: '{value}'. unable to convert to "
    "integer: give a whole number from {least} to {most}.",
}
_LENGTH = "{field} must have {least} to {most} characters."
_ITEMS = "{field} must have {least} to {most} items."
_DEFAULTS = {
    "additionalProperties": "Unknown attribute {extra}: send {known} only.",
    "const": "{field} must be {wanted}.",
    "enum": "{field} must be one of {wanted}, not '{value}'.",
    "format": _UUID,
    "maxItems": _ITEMS,
    "maxLength": _LENGTH,
    "maximum": _NUMBER,
    "minItems": _ITEMS,
    "minLength": _LENGTH,
    "minimum": _NUMBER,
    "required": "{field} is needed.",
}
_TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "object": "an object",
    "string": "a text",
}
_LEAST = ("minimum", "minLength", "minItems")
_MOST = ("maximum", "maxLength", "maxItems")


def sentence(error: jsonschema.ValidationError, field: str, *, is_old: bool = False) -> str:
    """The sentence for one violation in what is called ``field``; empty for a body or a query.

    ``is_old``: the client asks for a microversion that upstream has.
    """
    schema: dict[str, Any] = error.schema if isinstance(error.schema, dict) else {}
    own = schema.get(KEYWORD)
    if isinstance(own, dict):
        own = own.get(str(error.validator))
    template = own or _default(error, schema)
    if is_old:
        template = _UPSTREAM.get(template, template)
    value, path = _shown(error.instance), _path(error, field)
    return template.format(
        field=path or "The request body",
        last=path.rpartition(".")[2],
        value=value,
        name=value.partition(":")[2].strip(),
        missing="".join(_missing(error)),
        extra=_extra(error),
        known=", ".join(schema.get("properties", {})),
        wanted=_wanted(error),
        least=_first(schema, _LEAST, 0),
        most=_first(schema, _MOST, "any number of"),
    )


def _default(error: jsonschema.ValidationError, schema: dict[str, Any]) -> str:
    if error.validator == "type":
        numeric = schema.get("type") == "integer" and isinstance(error.instance, str)
        return _NUMBER if numeric else "{field} must be {wanted}."
    return _DEFAULTS.get(str(error.validator), "{field} is not of the form that is expected.")


def _path(error: jsonschema.ValidationError, field: str) -> str:
    text = field
    for part in [*error.absolute_path, *_missing(error)]:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix("[0]").removeprefix(".")[:SHOWN]


def _shown(value: Any) -> str:
    return (value if isinstance(value, str) else str(value))[:SHOWN]


def _missing(error: jsonschema.ValidationError) -> list[str]:
    """The first property that an object lacks, if the violation is about that."""
    if error.validator != "required":
        return []
    names: Any = error.validator_value
    instance: Any = error.instance
    return [name for name in names if name not in instance][:1]


def _extra(error: jsonschema.ValidationError) -> str:
    if error.validator != "additionalProperties":
        return ""
    known = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
    instance: Any = error.instance
    return ", ".join(name for name in instance if name not in known)[:SHOWN]


def _wanted(error: jsonschema.ValidationError) -> str:
    wanted: Any = error.validator_value
    if error.validator == "type":
        kinds = [wanted] if isinstance(wanted, str) else wanted
        return " or ".join(_TYPES[kind] for kind in kinds)
    return ", ".join(map(str, wanted)) if isinstance(wanted, list) else str(wanted)


def _first(schema: dict[str, Any], keywords: tuple[str, ...], default: Any) -> Any:
    return next((schema[keyword] for keyword in keywords if keyword in schema), default)
