# SPDX-License-Identifier: Apache-2.0
"""``/v2/function_pools`` and ``/v2/function_misses``: slots wanted, and slots missed."""

from __future__ import annotations

from typing import Any

from cyborg.api import arguments, declare, versions
from cyborg.api.controllers.resource import Resource, lists, shows
from cyborg.api.representation import filled, self_link
from cyborg.api.request import Request
from cyborg.api.types import function_pools as types
from cyborg.common.reasons import shown_words
from cyborg.db.paging import Page
from cyborg.function_pools import misses, pools
from cyborg.policy.rules import function_pool as policies
from cyborg.programming import trait_match

_SINCE = versions.REGULAR
_MEMBER = declare.Member(kind="Function pool")
_COUNTED = ("misses", "wanted", "ready", "used", "pending", "surplus", "devices")
_BODY = declare.Body(name="function_pool", type=types.FunctionPool)


class FunctionPools(Resource):
    """Function pools."""

    collection = "function_pools"
    kind = types.FunctionPool

    @lists(policies.GET_ALL, kind, "function_pools", since=_SINCE, query=types.QUERY)
    def get_all(self, request: Request, page: Page, **wanted: Any) -> list[pools.Pool]:
        """List function pools."""
        return pools.list_pools(page, **wanted)

    @shows(policies.GET_ONE, kind, since=_SINCE, member=_MEMBER)
    def get_one(self, request: Request, uuid: str) -> pools.Pool:
        """Show a function pool."""
        return pools.get_pool(uuid)

    @shows(policies.CREATE, kind, since=_SINCE, body=_BODY, success=201, faults=[409])
    def post(self, request: Request, body: Any) -> pools.Pool:
        """Create a function pool."""
        return pools.create_pool(_spec(request, body))

    @shows(policies.UPDATE, kind, since=_SINCE, member=_MEMBER, body=_BODY, faults=[409])
    def put_one(self, request: Request, uuid: str, body: Any) -> pools.Pool:
        """Replace a function pool."""
        return pools.replace_pool(uuid, _spec(request, body))

    @declare.operation(policies.DELETE, since=_SINCE, member=_MEMBER, success=204)
    def delete_one(self, request: Request, uuid: str) -> None:
        """Delete a function pool."""
        pools.delete_pool(uuid)

    def view(self, request: Request, pool: pools.Pool) -> dict[str, Any]:
        """A pool with what there is of it."""
        row = pool.row
        told = {
            "traits": [known.trait for known in row.traits],
            "reason": shown_words(request.caller, pools.FEWER, row.reason),
            "links": [self_link(request, self.collection, row.uuid)],
        }
        counted = {name: getattr(pool.counts, name) for name in _COUNTED}
        return filled(self.kind, request.version, row, told | counted)


class FunctionMisses(Resource):
    """Misses."""

    collection = "function_misses"

    @declare.operation(
        policies.MISS,
        since=_SINCE,
        body=declare.Body(name="function_miss", type=types.FunctionMiss),
        success=202,
        answer=types.FunctionMissed,
        faults=[404],
    )
    def post(self, request: Request, body: Any) -> dict[str, Any]:
        """Record that a function was missed."""
        if "function_id" in body:
            found = misses.post_of_function(body["function_id"].strip())
        else:
            found = misses.post_of_profile(request.caller, body["device_profile_name"])
        return {
            "function_pools": [
                {
                    "uuid": pool.uuid,
                    "name": pool.name,
                    "links": [self_link(request, "function_pools", pool.uuid)],
                }
                for pool in found
            ]
        }


def _spec(request: Request, body: dict[str, Any]) -> pools.PoolSpec:
    """The pool in the form in which it is stored.

    :raises Invalid: its image is known not to be of its function, or its function to end a trait
    """
    image = body.get("image_uuid")
    spec = pools.PoolSpec(
        name=body["name"].strip(),
        description=body.get("description"),
        function_id=body["function_id"].strip(),
        image_uuid=None if image is None else arguments.stored_uuid(image),
        hosts=body.get("hosts"),
        traits=sorted(set(body.get("traits", ()))),
        free=body["free"],
        max_devices=body["max_devices"],
    )
    trait_match.refuse(request.conf, spec.group, "The function pool can never be filled")
    return spec
