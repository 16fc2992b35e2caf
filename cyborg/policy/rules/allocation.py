# SPDX-License-Identifier: Apache-2.0
"""Policy rules of allocations.

They decide who may act; the caller's project decides on which allocations, in SQL.
"""

from __future__ import annotations

from cyborg.policy.rules.base import (
    ADMIN,
    PROJECT_MEMBER_OR_SERVICE,
    PROJECT_READER_OR_ADMIN,
    Rules,
)

RULES = Rules("cyborg:allocation", "/v2/allocations")
GET_ALL = RULES.add(
    "get_all",
    PROJECT_READER_OR_ADMIN,
    "List the allocations of your project, or all as an administrator.",
    "GET",
)
GET_ONE = RULES.add(
    "get_one", PROJECT_READER_OR_ADMIN, "Show an allocation.", "GET /{allocation_uuid}"
)
CREATE = RULES.add("create", PROJECT_MEMBER_OR_SERVICE, "Allocate what a consumer needs.", "POST")
CREATE_GROUPS = RULES.add(
    "create_groups",
    ADMIN,
    "Allocate by groups of the request's own, without a device profile.",
    "POST",
)
RENEW = RULES.add(
    "renew",
    PROJECT_MEMBER_OR_SERVICE,
    "Renew the lease of an allocation.",
    "POST /{allocation_uuid}/renew",
)
DELETE = RULES.add(
    "delete", PROJECT_MEMBER_OR_SERVICE, "Delete an allocation.", "DELETE /{allocation_uuid}"
)
