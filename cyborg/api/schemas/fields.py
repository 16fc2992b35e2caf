# SPDX-License-Identifier: Apache-2.0
"""The kinds of field that the schemas of several resources are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cyborg.api import arguments, declare, validation, versions

Schema = dict[str, Any]

UUID: Schema = {"type": "string", "format": "uuid"}
UUID_OR_NULL: Schema = {"type": ["string", "null"], "format": "uuid"}
TEXT: Schema = {"type": "string", "maxLength": arguments.TEXT_MAX}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
ID: Schema = {"type": "integer", "minimum": 0, "maximum": arguments.ID_MAX}
TIME: Schema = {"type": "string", "format": "date-time"}
TIME_OR_NULL: Schema = {"type": ["string", "null"], "format": "date-time"}
#: A text that may also be sent as a number.
WRITTEN: Schema = {"type": ["string", "integer"], "maxLength": arguments.TEXT_MAX}

_LINK: Schema = {
    "title": "Link",
    "type": "object",
    "required": ["href", "rel"],
    "additionalProperties": False,
    "properties": {"href": {"type": "string"}, "rel": {"enum": ["self", "bookmark", "next"]}},
}
LINKS: Schema = {"type": "array", "items": _LINK}


def member(kind: str | None = None) -> declare.Member:
    """A member named by its uuid; where a kind is given, what is no uuid is not found."""
    return declare.Member(schema=UUID, kind=kind)


def shown(title: str, /, **properties: Schema) -> Schema:
    """An object of an answer: it always has all of its properties, and no others."""
    return {
        "title": title,
        "type": "object",
        "required": list(properties),
        "additionalProperties": False,
        "properties": properties,
    }


def listed(key: str, item: Schema) -> Schema:
    """The answer of a list up to 2.3."""
    return shown(f"{item['title']}List", **{key: {"type": "array", "items": item}})


def paged(key: str, item: Schema) -> Schema:
    """The answer of a list from 2.4: there is a link to the next page if there is one."""
    page = listed(key, item)
    return {
        **page,
        "title": f"{item['title']}Page",
        "properties": {**page["properties"], f"{key}_links": LINKS},
    }


def separated(item: Schema) -> Schema:
    """Items in one query argument, with commas between them."""
    return {"type": "array", "items": item, validation.SEPARATOR: ","}


def paging(sort_keys: Iterable[str], /, **filters: Schema) -> Schema:
    """The query arguments of a list from 2.4, which can be sorted by any of ``sort_keys``."""
    return {
        **filters,
        "limit": {
            "type": "integer",
            "minimum": 1,
            "refusal": "limit must be a whole number from 1, not '{value}'.",
        },
        "marker": UUID,
        "sort_key": {
            "enum": list(sort_keys),
            "refusal": 'The sort_key value "{value}" is an invalid field for sorting; use one of '
            "{wanted}.",
        },
        "sort_dir": {"enum": ["asc", "desc"]},
    }


#: Query arguments that sort, cut and narrow a list of hardware up to 2.3.
FILTERS: Schema = {
    "filters.field": {
        "type": "array",
        "items": {
            "enum": [
                "name",
                "parent_uuid",
                "root_uuid",
                "board",
                "availability",
                "interface_type",
                "instance_uuid",
                "limit",
                "marker",
                "sort_key",
                "sort_dir",
            ],
            "refusal": "Invalid input for field/attribute field. Value: '{value}'. Value should "
            "be one of: {wanted}",
        },
    },
    "filters.value": {"type": "array", "items": TEXT},
}

#: The body of an error.
FAULT = {
    versions.MIN: shown("Fault", error_message={"type": "string"}),
    versions.REGULAR: shown(
        "Errors",
        errors={
            "type": "array",
            "minItems": 1,
            "items": shown(
                "Error",
                status={"type": "integer"},
                code={"type": "string"},
                title={"type": "string"},
                detail={"type": "string"},
                request_id={"type": "string"},
            ),
        },
    ),
}
