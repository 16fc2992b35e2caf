# SPDX-License-Identifier: Apache-2.0
"""Policy rules of operations, which program hardware and belong to no project."""

from __future__ import annotations

from cyborg.policy.rules.base import ADMIN, Rules

RULES = Rules("cyborg:operation", "/v2/operations")
GET_ALL = RULES.add("get_all", ADMIN, "List operations.", "GET")
GET_ONE = RULES.add("get_one", ADMIN, "Show an operation.", "GET /{operation_uuid}")
DELETE = RULES.add("delete", ADMIN, "Cancel a queued operation.", "DELETE /{operation_uuid}")
