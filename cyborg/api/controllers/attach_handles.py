# SPDX-License-Identifier: Apache-2.0
"""``/v2/attach_handles``: what guests are given, with the state of each and who has it."""

from __future__ import annotations

from typing import Any

from cyborg.api import versions
from cyborg.api.controllers.resource import Resource, lists
from cyborg.api.representation import timestamp
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

    @lists(
        policies.GET_ALL, kind, "attach_handles", since=versions.REGULAR, query=types.QUERY
    )
    def get_all(self, request: Request, page: Page, **wanted: Any) -> list[listing.Handle]:
        """List attach handles."""
        return listing.list_handles(page, **wanted)

    def view(self, request: Request, handle: listing.Handle) -> dict[str, Any]:
        """A handle with its state."""
        return {
            "uuid": handle.uuid,
            "state": handle.state,
            "state_reason": shown(request.caller, None, handle.state_reason),
            "attach_handle_type": handle.attach_type,
            "attach_handle_info": handle.attach_info,
            "resource_class": handle.resource_class,
            "device_uuid": handle.device_uuid,
            "deployable_uuid": handle.deployable_uuid,
            "hostname": handle.hostname,
            "arq_uuid": handle.arq_uuid,
            "instance_uuid": handle.consumer_uuid,
            "project_id": handle.project_id,
            "created_at": timestamp(handle.created_at),
            "updated_at": timestamp(handle.updated_at),
        }
