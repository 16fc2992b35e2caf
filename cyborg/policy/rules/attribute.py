# SPDX-License-Identifier: Apache-2.0
"""Policy rules of attributes, which belong to deployables and so to no project."""

from __future__ import annotations

from cyborg.policy.rules.base import ADMIN, PROJECT_MANAGER_OR_ADMIN, Rules

RULES = Rules("cyborg:attribute", "/v2/attributes")
GET_ALL = RULES.add("get_all", PROJECT_MANAGER_OR_ADMIN, "List attributes.", "GET")
GET_ONE = RULES.add(
    "get_one", PROJECT_MANAGER_OR_ADMIN, "Show an attribute.", "GET /{attribute_uuid}"
)
CREATE = RULES.add("create", ADMIN, "Add an attribute to a deployable.", "POST")
DELETE = RULES.add(
    "delete", ADMIN, "Delete an attribute that an administrator added.", "DELETE /{attribute_uuid}"
)
