# SPDX-License-Identifier: Apache-2.0
"""Policy rules of deployables, which are hardware and belong to no project."""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policy.rules import base

GET_ALL = "cyborg:deployable:get_all"
GET_ONE = "cyborg:deployable:get_one"
PROGRAM = "cyborg:deployable:program"

_COLLECTION = "/v2/deployables"


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """The rules of this resource."""
    return [
        base.rule(
            GET_ALL, base.PROJECT_MANAGER_OR_ADMIN, "List deployables.", ("GET", _COLLECTION)
        ),
        base.rule(
            GET_ONE,
            base.PROJECT_MANAGER_OR_ADMIN,
            "Show a deployable.",
            ("GET", f"{_COLLECTION}/{{deployable_uuid}}"),
        ),
        base.rule(
            PROGRAM,
            base.ADMIN,
            "Program a deployable.",
            ("PATCH", f"{_COLLECTION}/{{deployable_uuid}}/program"),
            ("POST", f"{_COLLECTION}/{{deployable_uuid}}/program"),
        ),
    ]
