# SPDX-License-Identifier: Apache-2.0
"""``/v2/history``: who had which accelerator when, failed binds, and what happened to devices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cyborg import history
from cyborg.api import versions
from cyborg.api.controllers.resource import Resource, lists
from cyborg.api.representation import timestamp_of_ms
from cyborg.api.request import Request
from cyborg.api.types import history as types
from cyborg.common import reasons
from cyborg.db import models
from cyborg.db.paging import Page
from cyborg.policy.rules import history as policies


class History(Resource):
    """Entries of the history."""

    collection = "history"
    kind = types.HistoryEntry

    @lists(policies.GET_ALL, kind, "history", since=versions.REGULAR, query=types.QUERY)
    def get_all(
        self, request: Request, page: Page, **wanted: Any
    ) -> Sequence[models.HistoryEntry]:
        """List entries of the history."""
        return history.list_entries(request.caller.project_scope, page, **wanted)

    def told(self, request: Request, entry: models.HistoryEntry) -> dict[str, Any]:
        """The entry's times, and what the caller may read of it."""
        everything = request.caller.is_admin
        return {
            "attach_handle_uuid": entry.handle_uuid,
            "device_profile_name": entry.profile_name,
            "attach_handle_info": json.loads(entry.attach_info or "{}"),
            "instance_uuid": entry.consumer_uuid,
            "hostname": entry.hostname if everything else None,
            "reason": reasons.shown(request.caller, entry.reason, entry.private_reason),
            "actor": entry.actor if everything else None,
            "started_at": timestamp_of_ms(entry.started_ms),
            "ended_at": timestamp_of_ms(entry.ended_ms),
        }
