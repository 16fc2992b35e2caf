# SPDX-License-Identifier: Apache-2.0
"""Policy rules of deployables, which are hardware and belong to no project."""

from __future__ import annotations

from cyborg.policy.rules.base import ADMIN, PROJECT_MANAGER_OR_ADMIN, Rules

RULES = Rules("cyborg:deployable", "/v2/deployables")
GET_ALL = RULES.add("get_all", PROJECT_MANAGER_OR_ADMIN, "List deployables.", "GET")
GET_ONE = RULES.add(
    "get_one", PROJECT_MANAGER_OR_ADMIN, "Show a deployable.", "GET /{deployable_uuid}"
)
PROGRAM = RULES.add(
    "program",
    ADMIN,
    "Program a deployable.",
    "PATCH /{deployable_uuid}/program",
    "POST /{deployable_uuid}/program",
)
