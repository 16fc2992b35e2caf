# SPDX-License-Identifier: Apache-2.0
"""An example of what a JSON Schema permits, for the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jsonschema

_FORMATS = {
    "uuid": "5c1b2b9c-6a1e-4d6e-9a55-6a4d2f0e8a11",
    "date-time": "2026-11-01T12:00:00+00:00",
    "date": "2026-11-01",
    "uri": "https://cloud.example/accelerator/v2",
}
#: Texts for schemas that permit only some, tried in this order.
_TEXTS = (
    *("aes-128", "fpga", "CUSTOM_FAST", "1", "2.4", "required", "/hostname"),
    *("resources:FPGA", "trait:CUSTOM_FAST", "accel:function_id"),
    "nqn.2014-08.org.nvmexpress:uuid:5c1b2b9c-6a1e-4d6e-9a55-6a4d2f0e8a11",
)


def example(schema: Any) -> Any:
    """A value that the schema permits; objects have all of their fields, as far as they may.

    Lists that may be empty are, if the value would not be permitted otherwise.
    """
    full = _example(schema, brief=False)
    if jsonschema.Draft202012Validator(schema).is_valid(full):
        return full
    return _example(schema, brief=True)


def _example(schema: Any, *, brief: bool) -> Any:
    if not isinstance(schema, Mapping):
        return None
    if "then" in schema:
        return _example(schema["then"], brief=brief)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if "enum" in schema:
        return next((value for value in schema["enum"] if value is not None), None)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema and "type" not in schema and "properties" not in schema:
            return _example(schema[key][0], brief=brief)
    return _of_type(schema, brief=brief)


def _of_type(schema: Mapping[str, Any], *, brief: bool) -> Any:
    kinds = schema.get("type", "object" if "properties" in schema else "null")
    kind = next((each for each in _listed(kinds) if each != "null"), "null")
    match kind:
        case "object":
            return _object(schema, brief=brief)
        case "array":
            is_empty = brief and not schema.get("minItems")
            return [] if is_empty else [_example(schema.get("items", {}), brief=brief)]
        case "string":
            return _text(schema)
        case "integer" | "number":
            return max(schema.get("minimum", 1), 1)
        case "boolean":
            return True
    return None


def _listed(kinds: Any) -> list[Any]:
    return list(kinds) if isinstance(kinds, list | tuple) else [kinds]


def _object(schema: Mapping[str, Any], *, brief: bool) -> dict[str, Any]:
    properties = schema.get("properties", {})
    left_out = {
        name for other in schema.get("oneOf", ())[1:] for name in other.get("required", ())
    }
    names = [name for name in properties if name not in left_out]
    found = {
        name: _example(properties[name], brief=brief)
        for name in names[: schema.get("maxProperties")]
    }
    found |= {name: {} for name in schema.get("required", ()) if name not in properties}
    for pattern, part in schema.get("patternProperties", {}).items():
        found[_fitting(pattern)] = _example(part, brief=brief)
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping) and not found:
        found[_text(schema.get("propertyNames", {}))] = _example(more, brief=brief)
    return found


def _text(schema: Mapping[str, Any]) -> str:
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    return _fitting(schema.get("pattern", ""))


def _fitting(pattern: str) -> str:
    return next((text for text in _TEXTS if re.search(pattern, text)), "")
