# SPDX-License-Identifier: Apache-2.0
"""``/v2/operations``: what has been asked of deployables, and what has become of it."""

from __future__ import annotations

from typing import Any

from cyborg.api import declare, pages, versions
from cyborg.api.controllers.resource import Resource
from cyborg.api.representation import self_link, timestamp
from cyborg.api.request import Request
from cyborg.api.schemas import fields
from cyborg.api.schemas import operations as schemas
from cyborg.db import models
from cyborg.policies import operation as policies
from cyborg.programming import operations

_SINCE = versions.PROGRAMMING


class Operations(Resource):
    """Operations."""

    @declare.operation(
        policies.GET_ALL, since=_SINCE, query=schemas.QUERY, answer=schemas.OPERATIONS
    )
    def get_all(self, request: Request, given: dict[str, Any]) -> dict[str, Any]:
        """List operations."""
        wanted, page = pages.read(request, given)
        found = operations.list_operations(page, **wanted)
        return pages.answer(request, "operations", "operations", found, page, view)

    @declare.operation(
        policies.GET_ONE,
        since=_SINCE,
        member=fields.member("Operation"),
        answer=schemas.OPERATION,
    )
    def get_one(self, request: Request, uuid: str) -> dict[str, Any]:
        """Show an operation."""
        return view(request, operations.get_operation(uuid))


def view(request: Request, operation: models.Operation) -> dict[str, Any]:
    """The operation as answers show it."""
    moment = operations.moment
    ended = None if operation.ended_ms is None else moment(operation.ended_ms)
    return {
        "uuid": operation.uuid,
        "deployable_uuid": operation.deployable_uuid,
        "state": operation.state,
        "error": operation.error,
        "image_uuid": operation.image_uuid,
        "image_name": operation.image_name,
        "function_id": operation.function_id,
        "function_name": operation.function_name,
        "instance_uuid": operation.instance_uuid,
        "asked_by": operation.asked_by,
        "history": [
            {"at": timestamp(moment(event["at_ms"])), "text": event["text"]}
            for event in operation.history
        ],
        "links": [self_link(request, "operations", operation.uuid)],
        "created_at": timestamp(operation.created_at),
        "ended_at": timestamp(ended),
    }
