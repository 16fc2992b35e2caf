# SPDX-License-Identifier: Apache-2.0
"""A schema's validators are made once, and find what jsonschema's own find."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from cyborg.api import validation

SCHEMA: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"maxLength": 5},
    "properties": {
        "list": {"type": "array", "items": {"type": "object", "required": ["a"]}, "maxItems": 2},
        "whole": {"allOf": [{"minimum": 1}, {"maximum": 3}]},
        "which": {"oneOf": [{"type": "string"}, {"const": 7}, {"enum": [7, 8]}]},
        "any": {"anyOf": [{"type": "string"}, {"items": {"type": "integer"}, "type": "array"}]},
        "not": {"not": {"enum": ["x"]}},
        "has": {"contains": {"const": 1}},
        "none": {"items": False},
        "also": True,
    },
    "additionalProperties": {
        "type": "object",
        "if": {"properties": {"op": {"const": "add"}}},
        "then": {"required": ["value"], "properties": {"value": {"type": "string"}}},
        "else": {"maxProperties": 1},
    },
}
#: Each with the keywords that it violates.
DATA = [
    ([], ["type"]),
    ({}, ["minProperties"]),
    ({"too long": {}}, ["propertyNames"]),
    ({"list": [{"a": 1}, {}]}, ["required"]),
    ({"list": [{}, 5, {}]}, ["items", "maxItems"]),
    ({"whole": 0}, ["allOf"]),
    ({"which": 7}, ["oneOf"]),
    ({"which": None}, ["oneOf"]),
    ({"any": [1, "a"]}, ["anyOf"]),
    ({"not": "x"}, ["not"]),
    ({"has": [2]}, ["contains"]),
    ({"none": [1]}, ["items"]),
    ({"other": {"op": "add"}}, ["then"]),
    ({"other": {"op": "add", "value": 1}}, ["then"]),
    ({"other": {"op": "remove", "value": 1}}, ["else"]),
    ({"list": [{"a": 1}], "whole": 2, "which": 8, "any": [1], "also": 1, "x": {"op": "x"}}, []),
]


def told(error: jsonschema.ValidationError) -> Any:
    """What refusals read of an error."""
    return (
        error.message,
        list(error.absolute_path),
        list(error.absolute_schema_path),
        error.validator,
        error.validator_value,
        error.instance,
        error.schema,
        [told(each) for each in error.context or ()],
    )


@pytest.mark.parametrize(("data", "violated"), DATA)
def test_they_find_the_same(data: Any, violated: list[str]) -> None:
    own = [told(one) for one in validation.Prepared(SCHEMA).validator.iter_errors(data)]
    stock = [told(one) for one in jsonschema.Draft202012Validator(SCHEMA).iter_errors(data)]
    assert own == stock
    assert bool(own) == bool(violated)
    for keyword in violated:
        assert any(keyword in each[2] for each in own)


def test_they_are_made_once() -> None:
    prepared = validation.Prepared(SCHEMA)
    outer, inner = prepared.validator, prepared["properties"]["list"]["items"]
    assert prepared.validator is outer
    assert outer.evolve(schema=inner) is inner.validator
    assert outer.evolve(schema=inner) is outer.evolve(schema=inner)
