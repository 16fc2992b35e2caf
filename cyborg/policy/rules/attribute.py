# SPDX-License-Identifier: Apache-2.0
"""Policy rules of attributes, which belong to deployables and so to no project."""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policy.rules import base

GET_ALL = "cyborg:attribute:get_all"
GET_ONE = "cyborg:attribute:get_one"
CREATE = "cyborg:attribute:create"
DELETE = "cyborg:attribute:delete"

_COLLECTION = "/v2/attributes"


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """The rules of this resource."""
    return [
        base.rule(
            GET_ALL, base.PROJECT_MANAGER_OR_ADMIN, "List attributes.", ("GET", _COLLECTION)
        ),
        base.rule(
            GET_ONE,
            base.PROJECT_MANAGER_OR_ADMIN,
            "Show an attribute.",
            ("GET", f"{_COLLECTION}/{{attribute_uuid}}"),
        ),
        base.rule(
            CREATE, base.ADMIN, "Add an attribute to a deployable.", ("POST", _COLLECTION)
        ),
        base.rule(
            DELETE,
            base.ADMIN,
            "Delete an attribute that an administrator added.",
            ("DELETE", f"{_COLLECTION}/{{attribute_uuid}}"),
        ),
    ]
