# SPDX-License-Identifier: Apache-2.0
"""Policy rules of allocations.

They decide who may act; the caller's project decides on which allocations, in SQL.
"""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policy.rules import base

GET_ALL = "cyborg:allocation:get_all"
GET_ONE = "cyborg:allocation:get_one"
CREATE = "cyborg:allocation:create"
CREATE_GROUPS = "cyborg:allocation:create_groups"
RENEW = "cyborg:allocation:renew"
DELETE = "cyborg:allocation:delete"

_COLLECTION = "/v2/allocations"
_ONE = f"{_COLLECTION}/{{allocation_uuid}}"


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """The rules of this resource."""
    return [
        base.rule(
            GET_ALL,
            base.PROJECT_READER_OR_ADMIN,
            "List the allocations of your project, or all as an administrator.",
            ("GET", _COLLECTION),
        ),
        base.rule(
            GET_ONE, base.PROJECT_READER_OR_ADMIN, "Show an allocation.", ("GET", _ONE)
        ),
        base.rule(
            CREATE,
            base.PROJECT_MEMBER_OR_SERVICE,
            "Allocate what a consumer needs.",
            ("POST", _COLLECTION),
        ),
        base.rule(
            CREATE_GROUPS,
            base.ADMIN,
            "Allocate by groups of the request's own, without a device profile.",
            ("POST", _COLLECTION),
        ),
        base.rule(
            RENEW,
            base.PROJECT_MEMBER_OR_SERVICE,
            "Renew the lease of an allocation.",
            ("POST", f"{_ONE}/renew"),
        ),
        base.rule(
            DELETE, base.PROJECT_MEMBER_OR_SERVICE, "Delete an allocation.", ("DELETE", _ONE)
        ),
    ]
