# SPDX-License-Identifier: Apache-2.0
"""Policy rules of function pools, which belong to no project, and of function misses."""

from __future__ import annotations

from cyborg.policy.rules.base import ADMIN, ADMIN_OR_SERVICE, Rules

RULES = Rules("cyborg", "/v2")
GET_ALL = RULES.add("function_pool:get_all", ADMIN, "List function pools.", "GET /function_pools")
GET_ONE = RULES.add(
    "function_pool:get_one",
    ADMIN,
    "Show a function pool.",
    "GET /function_pools/{function_pool_uuid}",
)
CREATE = RULES.add("function_pool:create", ADMIN, "Create a function pool.", "POST /function_pools")
UPDATE = RULES.add(
    "function_pool:update",
    ADMIN,
    "Replace a function pool.",
    "PUT /function_pools/{function_pool_uuid}",
)
DELETE = RULES.add(
    "function_pool:delete",
    ADMIN,
    "Delete a function pool.",
    "DELETE /function_pools/{function_pool_uuid}",
)
MISS = RULES.add(
    "function_miss:create",
    ADMIN_OR_SERVICE,
    "Record that a function was requested while no host had a free slot of it.",
    "POST /function_misses",
)
