# SPDX-License-Identifier: Apache-2.0
"""Policy rules of function pools, which belong to no project, and of function misses."""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policy.rules import base

GET_ALL = "cyborg:function_pool:get_all"
GET_ONE = "cyborg:function_pool:get_one"
CREATE = "cyborg:function_pool:create"
UPDATE = "cyborg:function_pool:update"
DELETE = "cyborg:function_pool:delete"
MISS = "cyborg:function_miss:create"

_COLLECTION = "/v2/function_pools"
_ONE = f"{_COLLECTION}/{{function_pool_uuid}}"


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """The rules of this resource."""
    return [
        base.rule(GET_ALL, base.ADMIN, "List function pools.", ("GET", _COLLECTION)),
        base.rule(GET_ONE, base.ADMIN, "Show a function pool.", ("GET", _ONE)),
        base.rule(CREATE, base.ADMIN, "Create a function pool.", ("POST", _COLLECTION)),
        base.rule(UPDATE, base.ADMIN, "Replace a function pool.", ("PUT", _ONE)),
        base.rule(DELETE, base.ADMIN, "Delete a function pool.", ("DELETE", _ONE)),
        base.rule(
            MISS,
            base.ADMIN_OR_SERVICE,
            "Record that a function was requested while no host had a free slot of it.",
            ("POST", "/v2/function_misses"),
        ),
    ]
