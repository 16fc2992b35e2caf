# SPDX-License-Identifier: Apache-2.0
"""Services: the agents and the conductors."""

from __future__ import annotations

from cyborg import liveness
from cyborg.api.schemas import fields

_BINARY: fields.Schema = {"enum": [liveness.AGENT, liveness.CONDUCTOR]}
_STATE: fields.Schema = {"enum": [liveness.UP, liveness.DOWN]}

SERVICE = fields.shown(
    "Service",
    uuid=fields.UUID,
    binary=_BINARY,
    host=fields.TEXT,
    hostname=fields.TEXT_OR_NULL,
    state=_STATE,
    last_seen=fields.TIME,
    driver_errors={"type": "object", "additionalProperties": {"type": "string"}},
    links=fields.LINKS,
    created_at=fields.TIME,
)
SERVICES = fields.paged("services", SERVICE)
QUERY = fields.paging(liveness.COLUMNS, binary=_BINARY, host=fields.TEXT, state=_STATE)
