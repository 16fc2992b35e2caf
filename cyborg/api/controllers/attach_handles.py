# SPDX-License-Identifier: Apache-2.0
"""``/v2/attach_handles``: what guests are given, with the state of each and who has it."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Row

from cyborg.api import versions
from cyborg.api.controllers.resource import Resource, lists
from cyborg.api.request import Request
from cyborg.api.types import attach_handles as types
from cyborg.common.reasons import shown
from cyborg.db.paging import Page
from cyborg.handles import listing
from cyborg.policy.rules import attach_handle as policies


class AttachHandles(Resource):
    """Attach handles."""

    collection = "attach_handles"
    kind = types.AttachHandle

    @lists(policies.GET_ALL, kind, "attach_handles", since=versions.REGULAR, query=types.QUERY)
    def get_all(self, request: Request, page: Page, **wanted: Any) -> list[Row[Any]]:
        """List attach handles."""
        return listing.list_handles(page, **wanted)

    def told(self, request: Request, handle: Row[Any]) -> dict[str, Any]:
        """The state for the caller, and what answers give other names."""
        return {
            "state_reason": shown(request.caller, None, handle.state_reason),
            "attach_handle_type": handle.attach_type,
            "attach_handle_info": json.loads(handle.attach_info),
        }
