# SPDX-License-Identifier: Apache-2.0
"""Attributes of deployables."""

from __future__ import annotations

from cyborg.api import arguments, versions
from cyborg.api.schemas import fields
from cyborg.inventory import admin

_VALUE_MAX = 65535

_KEY: dict[str, fields.Schema] = {"key": fields.TEXT, "value": {"type": "string"}}
_TYPED_VALUE = {"value": {"type": ["string", "integer"]}}
_REST = {
    "created_at": fields.TIME,
    "updated_at": fields.TIME_OR_NULL,
    "links": fields.LINKS,
}
_OLD = fields.shown("Attribute", uuid=fields.UUID, deployable_id=fields.ID, **_KEY, **_REST)
_REGULAR = fields.shown(
    "Attribute",
    uuid=fields.UUID,
    deployable_id=fields.ID,
    deployable_uuid=fields.UUID,
    **_KEY,
    **_REST,
)
_TYPED = {**_REGULAR, "properties": {**_REGULAR["properties"], **_TYPED_VALUE}}

ATTRIBUTE = {versions.MIN: _OLD, versions.REGULAR: _REGULAR, versions.FACTS: _TYPED}
ATTRIBUTES = {
    versions.MIN: fields.listed("attributes", _OLD),
    versions.REGULAR: fields.paged("attributes", _REGULAR),
    versions.FACTS: fields.paged("attributes", _TYPED),
}
_FILTERS = {"deployable_id": fields.ID, "deployable_uuid": fields.UUID, "key": fields.TEXT}
QUERY = {
    versions.MIN: {"deployable_id": fields.ID, "key": fields.TEXT},
    versions.REGULAR: fields.paging(admin.COLUMNS, **_FILTERS),
    versions.FACTS: fields.paging(admin.COLUMNS, **_FILTERS, value=fields.TEXT),
}

_BY_ID: fields.Schema = {
    "title": "NewAttribute",
    "type": "object",
    "required": ["deployable_id", "key", "value"],
    "additionalProperties": False,
    "properties": {
        # The number of a row, which may also be sent as a text.
        "deployable_id": {
            "type": ["integer", "string"],
            "pattern": "^[0-9]{1,9}$",
            "minimum": 0,
            "maximum": arguments.ID_MAX,
            "refusal": "Invalid input for field/attribute deployable_id. Value: '{value}'. unable "
            "to convert to integer.",
        },
        "key": {**fields.WRITTEN, "minLength": 1},
        "value": {"type": ["string", "integer"], "maxLength": _VALUE_MAX},
        "uuid": fields.UUID,
    },
}
_BY_ID_OR_UUID: fields.Schema = {
    **_BY_ID,
    "required": ["key", "value"],
    "properties": {**_BY_ID["properties"], "deployable_uuid": fields.UUID},
    "oneOf": [{"required": ["deployable_uuid"]}, {"required": ["deployable_id"]}],
    "refusal": {"oneOf": "Send either deployable_uuid or deployable_id."},
}
CREATE = {versions.MIN: _BY_ID, versions.REGULAR: _BY_ID_OR_UUID}
