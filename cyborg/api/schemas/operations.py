# SPDX-License-Identifier: Apache-2.0
"""Operations, which program deployables, and what asks for one."""

from __future__ import annotations

from cyborg.api.schemas import fields
from cyborg.programming import operations

_STATE: fields.Schema = {"enum": list(operations.STATES)}
_EVENT = fields.shown("OperationEvent", at=fields.TIME, text={"type": "string"})

OPERATION = fields.shown(
    "Operation",
    uuid=fields.UUID,
    deployable_uuid=fields.UUID,
    state=_STATE,
    error=fields.TEXT_OR_NULL,
    image_uuid=fields.UUID_OR_NULL,
    image_name=fields.TEXT_OR_NULL,
    function_id=fields.TEXT_OR_NULL,
    function_name=fields.TEXT_OR_NULL,
    instance_uuid=fields.UUID_OR_NULL,
    asked_by=fields.TEXT,
    history={"type": "array", "items": _EVENT},
    links=fields.LINKS,
    created_at=fields.TIME,
    ended_at=fields.TIME_OR_NULL,
)
OPERATIONS = fields.paged("operations", OPERATION)
QUERY = fields.paging(
    operations.COLUMNS,
    deployable_uuid=fields.UUID,
    instance_uuid=fields.UUID,
    state=_STATE,
)

_NAME: fields.Schema = {"type": "string", "minLength": 1, "maxLength": 255}
_ONE = "Send exactly one of {known}."
PROGRAM: fields.Schema = {
    "title": "Program",
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
    "properties": {
        "image_uuid": fields.UUID,
        "image_name": _NAME,
        "function_id": _NAME,
        "function_name": _NAME,
    },
    "refusal": {"minProperties": _ONE, "maxProperties": _ONE},
}
