# SPDX-License-Identifier: Apache-2.0
"""What an administrator is told to have given up."""

from __future__ import annotations

from cyborg import arq_states
from cyborg.api.schemas import fields

_ARQ = fields.shown(
    "GivenUpRequest",
    uuid=fields.UUID,
    state={"enum": sorted(arq_states.ALL)},
    project_id=fields.TEXT_OR_NULL,
    instance_uuid=fields.UUID_OR_NULL,
    hostname=fields.TEXT_OR_NULL,
    device_rp_uuid=fields.UUID_OR_NULL,
    attach_handle_uuid=fields.UUID_OR_NULL,
    host_step={"enum": ["prepare", "clean", None]},
    last_error=fields.TEXT_OR_NULL,
)
_UUIDS: fields.Schema = {"type": "array", "items": fields.UUID}

GIVEN_UP = fields.shown(
    "Removal",
    given_up=fields.shown(
        "GivenUp",
        arqs={"type": "array", "items": _ARQ},
        devices=_UUIDS,
        resource_providers=_UUIDS,
    ),
)
QUERY: fields.Schema = {"force": {"type": "boolean"}}
