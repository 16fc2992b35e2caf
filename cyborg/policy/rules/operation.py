# SPDX-License-Identifier: Apache-2.0
"""Policy rules of operations, which program hardware and belong to no project."""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policy.rules import base

GET_ALL = "cyborg:operation:get_all"
GET_ONE = "cyborg:operation:get_one"
DELETE = "cyborg:operation:delete"

_COLLECTION = "/v2/operations"


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """The rules of this resource."""
    return [
        base.rule(GET_ALL, base.ADMIN, "List operations.", ("GET", _COLLECTION)),
        base.rule(
            GET_ONE,
            base.ADMIN,
            "Show an operation.",
            ("GET", f"{_COLLECTION}/{{operation_uuid}}"),
        ),
        base.rule(
            DELETE,
            base.ADMIN,
            "Cancel a queued operation.",
            ("DELETE", f"{_COLLECTION}/{{operation_uuid}}"),
        ),
    ]
