# SPDX-License-Identifier: Apache-2.0
"""Function pools, and misses of functions."""

from __future__ import annotations

from cyborg.api import arguments
from cyborg.api.schemas import fields
from cyborg.function_pools import pools

_DESCRIPTION_MAX = 65535
#: The most slots that one pool may want.
_SLOTS_MAX = 100000
_FUNCTION_MAX = 128

_NAME: fields.Schema = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"\S"}
#: What drivers may show as loaded, and more than hyphens: those mean nothing.
_FUNCTION: fields.Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": _FUNCTION_MAX,
    "pattern": r"^\s*-*[A-Za-z0-9_.][A-Za-z0-9_.-]*\s*$",
    "refusal": {
        "pattern": "{field} must be the id of a function. "
        "Use letters, digits, '_', '.' and '-', and not hyphens alone.",
    },
}
_COUNT: fields.Schema = {"type": "integer", "minimum": 0}
_TRAIT: fields.Schema = {
    "type": "string",
    "maxLength": arguments.TEXT_MAX,
    "pattern": "^[A-Z0-9_]+$",
    "refusal": {"pattern": "{field} must be the name of a trait: capitals, digits and '_'."},
}
_TRAITS: fields.Schema = {"type": "array", "maxItems": 50, "items": _TRAIT}

SPEC: fields.Schema = {
    "title": "FunctionPoolRequest",
    "type": "object",
    "required": ["name", "function_id", "free", "max_devices"],
    "additionalProperties": False,
    "properties": {
        "name": _NAME,
        "description": {"type": ["string", "null"], "maxLength": _DESCRIPTION_MAX},
        "function_id": _FUNCTION,
        "image_uuid": fields.UUID_OR_NULL,
        "hosts": {
            "type": ["string", "null"],
            "minLength": 1,
            "maxLength": arguments.TEXT_MAX,
        },
        "traits": _TRAITS,
        "free": {"type": "integer", "minimum": 0, "maximum": _SLOTS_MAX},
        "max_devices": {"type": "integer", "minimum": 1, "maximum": _SLOTS_MAX},
    },
}

POOL = fields.shown(
    "FunctionPool",
    uuid=fields.UUID,
    name=fields.TEXT,
    description=fields.TEXT_OR_NULL,
    function_id=fields.TEXT,
    image_uuid=fields.UUID_OR_NULL,
    hosts=fields.TEXT_OR_NULL,
    traits={"type": "array", "items": fields.TEXT},
    free=_COUNT,
    max_devices=_COUNT,
    misses=_COUNT,
    wanted=_COUNT,
    ready=_COUNT,
    used=_COUNT,
    pending=_COUNT,
    surplus=_COUNT,
    devices=_COUNT,
    reason=fields.TEXT_OR_NULL,
    links=fields.LINKS,
    created_at=fields.TIME,
    updated_at=fields.TIME_OR_NULL,
)
POOLS = fields.paged("function_pools", POOL)
QUERY = fields.paging(pools.COLUMNS, name=fields.TEXT, function_id=fields.TEXT)

_EITHER = "Give function_id or device_profile_name, and not both."
MISS: fields.Schema = {
    "title": "FunctionMiss",
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
    "properties": {"function_id": _FUNCTION, "device_profile_name": fields.TEXT},
    "refusal": {"minProperties": _EITHER, "maxProperties": _EITHER},
}
MISSED = fields.shown(
    "FunctionMissed",
    function_pools={
        "type": "array",
        "items": fields.shown(
            "FunctionPoolName", uuid=fields.UUID, name=fields.TEXT, links=fields.LINKS
        ),
    },
)
