# SPDX-License-Identifier: Apache-2.0
"""``/v2/function_misses``: reports that a function was wanted and not there."""

from __future__ import annotations

from typing import Any

from cyborg.api import declare, versions
from cyborg.api.controllers.resource import Resource
from cyborg.api.representation import self_link
from cyborg.api.request import Request
from cyborg.api.types import function_pools as types
from cyborg.function_pools import misses
from cyborg.policy.rules import function_pool as policies


class FunctionMisses(Resource):
    """Misses."""

    collection = "function_misses"

    @declare.operation(
        policies.MISS,
        since=versions.REGULAR,
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
