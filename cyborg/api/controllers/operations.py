# SPDX-License-Identifier: Apache-2.0
"""``/v2/operations``: the requests to program deployables, and their results."""

from __future__ import annotations

from typing import Any

from cyborg.api import declare, versions
from cyborg.api.controllers.resource import Resource, lists, shows
from cyborg.api.representation import timestamp_of_ms
from cyborg.api.request import Request
from cyborg.api.types import operations as types
from cyborg.common.reasons import shown_words
from cyborg.db import models
from cyborg.db.paging import Page
from cyborg.policy.rules import operation as policies
from cyborg.programming import cancellation, operations

_SINCE = versions.REGULAR
_MEMBER = declare.Member(kind="Operation")


class Operations(Resource):
    """Operations."""

    collection = "operations"
    kind = types.Operation

    @lists(policies.GET_ALL, kind, "operations", since=_SINCE, query=types.QUERY)
    def get_all(
        self, request: Request, page: Page, **wanted: Any
    ) -> list[models.Operation]:
        """List operations."""
        return operations.list_operations(page, **wanted)

    @shows(policies.GET_ONE, kind, since=_SINCE, member=_MEMBER)
    def get_one(self, request: Request, uuid: str) -> models.Operation:
        """Show an operation."""
        return operations.get_operation(uuid)

    @declare.operation(policies.DELETE, since=_SINCE, member=_MEMBER, success=204, faults=[409])
    def delete_one(self, request: Request, uuid: str) -> None:
        """Cancel an operation that has not begun to write."""
        cancellation.cancel(uuid, f"user {request.caller.user_id}")

    def told(self, request: Request, operation: models.Operation) -> dict[str, Any]:
        """The error for the caller, and the times of what has happened."""
        return {
            "error": shown_words(request.caller, operations.NOT_DONE, operation.error),
            "instance_uuid": operation.consumer_uuid,
            "history": [
                {"at": timestamp_of_ms(event["at_ms"]), "text": event["text"]}
                for event in operation.history
            ],
            "ended_at": timestamp_of_ms(operation.ended_ms),
        }
