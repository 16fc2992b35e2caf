# SPDX-License-Identifier: Apache-2.0
"""Each violation of a schema is told in a sentence that names the field and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from cyborg.api import validation
from cyborg.common import errors

UUID = "11111111-1111-4111-8111-111111111111"
SCHEMA = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^[a-z]*$"},
        "uuid": {"type": ["string", "null"], "format": "uuid"},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "kind": {"enum": ["this", "that"]},
        "only": {"const": 7},
        "items": {"type": "array", "maxItems": 2, "items": {"type": "boolean"}},
        "own": {"type": "string", "maxLength": 2, "refusal": "own is {value}, not {most} long"},
        "some": {"type": "string", "maxLength": 2, "refusal": {"maxLength": "shorten {field}"}},
        "map": {"type": "object", "propertyNames": {"pattern": "^a:", "refusal": "no {name}"}},
    },
}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "The request body must be an object."),
        ({}, "name is needed."),
        ({"name": 5}, "name must be a text."),
        ({"name": ""}, "name must have 1 to 5 characters."),
        ({"name": "abcdef"}, "name must have 1 to 5 characters."),
        ({"name": "A"}, "name is not of the form that is expected."),
        ({"name": "a\n"}, "name is not of the form that is expected."),
        ({"uuid": "bad"}, "uuid must be a UUID, not 'bad'."),
        ({"uuid": 5}, "uuid must be a text or null."),
        ({"count": 10}, "count must be a whole number from 1 to 9, not '10'."),
        ({"count": "x"}, "count must be a whole number from 1 to 9, not 'x'."),
        ({"count": True}, "count must be a whole number."),
        ({"kind": "those"}, "kind must be one of this, that, not 'those'."),
        ({"only": 8}, "only must be 7."),
        ({"items": [True] * 3}, "items must have 0 to 2 items."),
        ({"items": [True, 1]}, "items[1] must be true or false."),
        ({"own": 5}, "own is 5, not 2 long"),
        ({"own": "{value}"}, "own is {value}, not 2 long"),
        ({"some": 5}, "some must be a text."),
        ({"some": "abc"}, "shorten some"),
        ({"map": {"b: x": 1}}, "no x"),
        ({"b": 1, "a": 1}, "Unknown attribute b, a: send name, uuid, count"),
        ({"x" * 999: 1}, "Unknown attribute " + "x" * 255 + ": send"),
    ],
)
def test_sentences(data: Any, sentence: str) -> None:
    if data and "name" not in data:
        data = {"name": "a", **data}
    with pytest.raises(errors.Invalid) as caught:
        validation.check(SCHEMA, data)
    assert sentence in caught.value.message


def test_what_is_as_the_schema_says_and_what_a_message_is_about() -> None:
    validation.check(SCHEMA, {"name": "a", "uuid": UUID.upper().replace("-", ""), "items": [False]})
    with pytest.raises(errors.Invalid, match=r"^Not applied: uuid must be a text\.$"):
        validation.check({"type": "string"}, 5, field="uuid", prefix="Not applied: ")
