# SPDX-License-Identifier: Apache-2.0
"""``/v2/function_pools``: how many free slots of which functions there are to be."""

from __future__ import annotations

from typing import Any

from cyborg.api import arguments, declare, pages, versions
from cyborg.api.controllers.resource import Resource
from cyborg.api.representation import self_link, timestamp
from cyborg.api.request import Request
from cyborg.api.schemas import fields
from cyborg.api.schemas import function_pools as schemas
from cyborg.function_pools import pools
from cyborg.policies import function_pool as policies

_SINCE = versions.FUNCTION_POOLS
_MEMBER = fields.member("Function pool")
_BODY = declare.Body(name="function_pool", schema=schemas.SPEC)


class FunctionPools(Resource):
    """Function pools."""

    @declare.operation(
        policies.GET_ALL, since=_SINCE, query=schemas.QUERY, answer=schemas.POOLS
    )
    def get_all(self, request: Request, given: dict[str, Any]) -> dict[str, Any]:
        """List function pools."""
        wanted, page = pages.read(request, given)
        found = pools.list_pools(page, **wanted)
        return pages.answer(request, "function_pools", "function_pools", found, page, _view)

    @declare.operation(policies.GET_ONE, since=_SINCE, member=_MEMBER, answer=schemas.POOL)
    def get_one(self, request: Request, uuid: str) -> dict[str, Any]:
        """Show a function pool."""
        return _view(request, pools.get_pool(uuid))

    @declare.operation(
        policies.CREATE,
        since=_SINCE,
        body=_BODY,
        success=201,
        answer=schemas.POOL,
        faults=[409],
    )
    def post(self, request: Request, body: Any) -> dict[str, Any]:
        """Create a function pool."""
        return _view(request, pools.create_pool(_spec(body)))

    @declare.operation(
        policies.UPDATE,
        since=_SINCE,
        member=_MEMBER,
        body=_BODY,
        answer=schemas.POOL,
        faults=[409],
    )
    def put_one(self, request: Request, uuid: str, body: Any) -> dict[str, Any]:
        """Replace a function pool."""
        return _view(request, pools.replace_pool(uuid, _spec(body)))

    @declare.operation(policies.DELETE, since=_SINCE, member=_MEMBER, success=204)
    def delete_one(self, request: Request, uuid: str) -> None:
        """Delete a function pool."""
        pools.delete_pool(uuid)


def _spec(body: dict[str, Any]) -> pools.Spec:
    """The pool in the form in which it is stored."""
    image = body.get("image_uuid")
    return pools.Spec(
        name=body["name"].strip(),
        description=body.get("description"),
        function_id=body["function_id"].strip(),
        image_uuid=None if image is None else arguments.stored_uuid(image),
        hosts=body.get("hosts"),
        traits=sorted(set(body.get("traits", ()))),
        free=body["free"],
        max_devices=body["max_devices"],
    )


def _view(request: Request, pool: pools.Pool) -> dict[str, Any]:
    row, counts = pool.row, pool.counts
    return {
        "uuid": row.uuid,
        "name": row.name,
        "description": row.description,
        "function_id": row.function_id,
        "image_uuid": row.image_uuid,
        "hosts": row.hosts,
        "traits": [known.trait for known in row.traits],
        "free": row.free,
        "max_devices": row.max_devices,
        "misses": counts.misses,
        "wanted": counts.wanted,
        "ready": counts.ready,
        "used": counts.used,
        "pending": counts.pending,
        "surplus": counts.surplus,
        "devices": counts.devices,
        "reason": row.reason,
        "links": [self_link(request, "function_pools", row.uuid)],
        "created_at": timestamp(row.created_at),
        "updated_at": timestamp(row.updated_at),
    }
