# SPDX-License-Identifier: Apache-2.0
"""Deployables, and what asks for one to be programmed."""

from __future__ import annotations

from cyborg import program_modes
from cyborg.api import versions
from cyborg.api.schemas import fields
from cyborg.inventory import query

_PARTS = {
    "uuid": fields.UUID,
    "parent_id": {"type": ["integer", "null"]},
    "root_id": {"type": ["integer", "null"]},
    "name": fields.TEXT,
    "num_accelerators": {"type": "integer", "minimum": 0},
    "device_id": fields.ID,
}
#: JSON in a text: a list of objects with one key each.
_ATTRIBUTES_AS_TEXT: dict[str, fields.Schema] = {"attributes_list": {"type": "string"}}
_ATTRIBUTES: dict[str, fields.Schema] = {
    "attributes": {
        "title": "AttributesByKey",
        "type": "object",
        "additionalProperties": {"type": ["string", "integer"]},
    }
}
_PROGRAM: dict[str, fields.Schema] = {
    "program": {
        **fields.shown(
            "RunProgram",
            mode={"enum": list(program_modes.ALL)},
            in_doubt={"type": "boolean"},
            image_uuid=fields.UUID_OR_NULL,
            function_id=fields.TEXT_OR_NULL,
            function_name=fields.TEXT_OR_NULL,
            programmed_at=fields.TIME_OR_NULL,
            programmed_by=fields.TEXT_OR_NULL,
            verified_by=fields.TEXT_OR_NULL,
        ),
        "type": ["object", "null"],
    }
}
_REST = {
    "rp_uuid": fields.UUID,
    "driver_name": fields.TEXT,
    "bitstream_id": fields.TEXT_OR_NULL,
    "links": fields.LINKS,
    "created_at": fields.TIME,
    "updated_at": fields.TIME_OR_NULL,
}
_OLD = fields.shown("Deployable", **_PARTS, **_ATTRIBUTES_AS_TEXT, **_REST)
_REGULAR = fields.shown(
    "Deployable", **_PARTS, device_uuid=fields.UUID, **_ATTRIBUTES_AS_TEXT, **_REST
)
_TYPED = fields.shown("Deployable", **_PARTS, device_uuid=fields.UUID, **_ATTRIBUTES, **_REST)

_PROGRAMMED = fields.shown(
    "Deployable", **_PARTS, device_uuid=fields.UUID, **_ATTRIBUTES, **_PROGRAM, **_REST
)

DEPLOYABLE = {
    versions.MIN: _OLD,
    versions.REGULAR: _REGULAR,
    versions.FACTS: _TYPED,
    versions.PROGRAMMING: _PROGRAMMED,
}
DEPLOYABLES = {
    versions.MIN: fields.listed("deployables", _OLD),
    versions.REGULAR: fields.paged("deployables", _REGULAR),
    versions.FACTS: fields.paged("deployables", _TYPED),
    versions.PROGRAMMING: fields.paged("deployables", _PROGRAMMED),
}
QUERY = {
    versions.MIN: fields.FILTERS,
    versions.REGULAR: fields.paging(
        query.DEPLOYABLE_COLUMNS,
        name=fields.TEXT,
        device_id=fields.ID,
        device_uuid=fields.UUID,
        rp_uuid=fields.UUID,
        driver_name=fields.TEXT,
    ),
}

_IMAGE: fields.Schema = {
    "type": "object",
    "required": ["image_uuid"],
    "additionalProperties": False,
    "properties": {"image_uuid": fields.UUID},
}
_OPERATION: fields.Schema = {
    "title": "ProgramOperation",
    "type": "object",
    "required": ["path", "op", "value"],
    "additionalProperties": False,
    "properties": {
        "path": {"const": "/program"},
        "op": {"enum": ["replace", "add"]},
        "value": {"type": "array", "minItems": 1, "maxItems": 1, "items": _IMAGE},
    },
}
PROGRAM: fields.Schema = {
    "type": "array",
    "minItems": 1,
    "maxItems": 1,
    "items": _OPERATION,
    "refusal": "Invalid input for field/attribute program_info: send a list of one operation.",
}
