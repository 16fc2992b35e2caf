# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests (ARQs)."""

from __future__ import annotations

from cyborg import arq_states
from cyborg.api import arguments, declare, versions
from cyborg.api.schemas import fields
from cyborg.arqs import service
from cyborg.db import models

_STATE: fields.Schema = {"enum": sorted(arq_states.ALL - {models.DELETING})}
#: From 2.6 an administrator may ask for those whose deletion waits for their host.
_ANY_STATE: fields.Schema = {"enum": sorted(arq_states.ALL)}
_STATE_REASON = {"state_reason": fields.TEXT_OR_NULL}
_REST = {
    "device_profile_name": fields.TEXT,
    "device_profile_group_id": {"type": "integer", "minimum": 0},
    "hostname": fields.TEXT_OR_NULL,
    "device_rp_uuid": fields.UUID_OR_NULL,
    "instance_uuid": fields.UUID_OR_NULL,
    "project_id": fields.TEXT_OR_NULL,
    # Empty until the ARQ is bound.
    "attach_handle_type": fields.TEXT,
    "attach_handle_uuid": fields.UUID_OR_NULL,
    "attach_handle_info": {"type": "object", "additionalProperties": {"type": "string"}},
    "links": fields.LINKS,
    "created_at": fields.TIME,
    "updated_at": fields.TIME_OR_NULL,
}
_OLD = fields.shown("AcceleratorRequest", uuid=fields.UUID, state=_STATE, **_REST)
_NEW = fields.shown("AcceleratorRequest", uuid=fields.UUID, state=_STATE, **_STATE_REASON, **_REST)

_NEWEST = fields.shown(
    "AcceleratorRequest", uuid=fields.UUID, state=_ANY_STATE, **_STATE_REASON, **_REST
)

ARQ = {versions.MIN: _OLD, versions.REGULAR: _NEW, versions.SERVICES: _NEWEST}
CREATED = {
    versions.MIN: fields.listed("arqs", _OLD),
    versions.REGULAR: fields.listed("arqs", _NEW),
    versions.SERVICES: fields.listed("arqs", _NEWEST),
}
ARQS = {
    versions.MIN: fields.listed("arqs", _OLD),
    versions.REGULAR: fields.paged("arqs", _NEW),
    versions.SERVICES: fields.paged("arqs", _NEWEST),
}
_SELECTED: fields.Schema = {"instance": fields.UUID, "bind_state": {"enum": ["resolved"]}}
_FILTERS: fields.Schema = {
    **_SELECTED,
    "state": _STATE,
    "hostname": fields.TEXT,
    "device_profile_name": fields.TEXT,
    "device_rp_uuid": fields.UUID,
    "project_id": fields.TEXT,
    "all_projects": {"type": "boolean"},
}
QUERY = {
    versions.MIN: _SELECTED,
    versions.REGULAR: fields.paging(service.COLUMNS, **_FILTERS),
    versions.SERVICES: fields.paging(service.COLUMNS, **{**_FILTERS, "state": _ANY_STATE}),
}
#: Which ARQs to delete: one of the two.
DELETE = {"arqs": fields.separated(fields.TEXT), "instance": fields.UUID}

CREATE: fields.Schema = {
    "title": "NewAcceleratorRequests",
    "type": "object",
    "required": ["device_profile_name"],
    "additionalProperties": False,
    "properties": {
        "device_profile_name": fields.TEXT,
        # Sent by clients in the field; they change nothing.
        "device_profile_group_id": {},
        "image_uuid": {},
    },
    "refusal": {
        "type": "DeviceProfile name needed: send an object with device_profile_name.",
        "required": "DeviceProfile name needed: send an object with device_profile_name.",
        "additionalProperties": "Unknown attribute {extra}: send device_profile_name only.",
    },
}

_UUID_PATHS = ("device_rp_uuid", "instance_uuid")
_PATHS = ("hostname", *_UUID_PATHS, "project_id")
_OPERATION: fields.Schema = {
    "title": "BindOperation",
    "type": "object",
    "required": ["path", "op"],
    "additionalProperties": False,
    "properties": {
        "path": {
            "type": "string",
            "enum": [slash + path for slash in ("/", "") for path in _PATHS],
            "refusal": {"enum": "Invalid path in patch {value}"},
        },
        "op": {
            "type": "string",
            "enum": ["add", "remove"],
            "refusal": {"enum": "Every op must be add or remove"},
        },
        "value": {"type": ["string", "null"], "minLength": 1, "maxLength": arguments.TEXT_MAX},
    },
    "allOf": [
        {
            "if": {"properties": {"op": {"const": "add"}}},
            "then": {"required": ["value"]},
        },
        {
            "if": {
                "properties": {
                    "op": {"const": "add"},
                    "path": {"enum": [slash + path for slash in ("/", "") for path in _UUID_PATHS]},
                }
            },
            "then": {"properties": {"value": {"format": "uuid"}}},
        },
    ],
}
#: Lists of operations by the uuid of an ARQ.
PATCH: fields.Schema = {
    "title": "Binding",
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {
        "type": "array",
        "minItems": 1,
        "items": _OPERATION,
        "refusal": "the operations of {field} must be a list of at least one",
    },
    "refusal": "the body must map the uuid of at least one ARQ to a list of operations",
}
#: Sent by SDKs in the field behind the collection in the path of a PATCH; it changes nothing.
ANY = declare.Member(schema=fields.TEXT)
