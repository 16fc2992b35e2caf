# SPDX-License-Identifier: Apache-2.0
"""Examples for the OpenAPI document: the samples of the API reference, cut to a microversion."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema

#: The API reference shows them too.
SAMPLES = pathlib.Path(__file__).with_name("samples")


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a document, the outer ones first."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from _objects(each)


_OBJECTS = [
    each
    for path in sorted(SAMPLES.glob("*.json"))
    for each in _objects(json.loads(path.read_text(encoding="utf-8")))
]


def example(schema: Mapping[str, Any], name: str = "", likely: list[Any] = _OBJECTS) -> Any:
    """A value that the schema permits: one of what is ``likely``, else of the samples.

    It is made of the sample that is most like it, or of what samples have under that ``name``.
    """
    if "examples" in schema:
        return schema["examples"][0]
    if "properties" not in schema:
        schema = schema.get("else", schema)
    if schema.get("type") == "array":
        return list(_items(schema["items"], name, likely))
    permits = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.FormatChecker()
    ).is_valid
    return next(filter(permits, _made(schema, name, likely)), None)


def _items(schema: Mapping[str, Any], name: str, likely: list[Any]) -> Iterator[Any]:
    for each in likely[0] if likely and isinstance(likely[0], list) else [None]:
        yield example(schema, name, likely if each is None else [each])


def _made(schema: Mapping[str, Any], name: str, likely: list[Any]) -> Iterator[Any]:
    """Values that may be an example, the likeliest first."""
    if "properties" not in schema:
        yield from (*likely, *(each[name] for each in _OBJECTS if name in each))
        return
    objects = [each for each in likely if isinstance(each, dict)] or _OBJECTS
    for each in sorted(objects, key=lambda each: _unlike(schema, each)):
        yield _cut(schema, each)


def _unlike(schema: Mapping[str, Any], sample: Mapping[str, Any]) -> float:
    """The unlikeness of a sample: how few of the schema's names it has, with fitting values."""
    known: Mapping[str, Any] = schema["properties"]
    common = [
        name
        for name in known.keys() & sample.keys()
        if sample[name] in known[name].get("enum", [known[name].get("const", sample[name])])
    ]
    return -len(common) / len(known.keys() | sample.keys())


def _cut(schema: Mapping[str, Any], sample: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a sample that the schema knows, and what it needs besides."""
    return {
        name: example(part, name, [sample[name]] if name in sample else [])
        for name, part in schema["properties"].items()
        if name in sample or name in schema.get("required", ())
    }
