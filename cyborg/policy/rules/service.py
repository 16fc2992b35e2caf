# SPDX-License-Identifier: Apache-2.0
"""Policy rules of services: the agents and the conductors."""

from __future__ import annotations

from cyborg.policy.rules.base import ADMIN, Rules

RULES = Rules("cyborg:service", "/v2/services")
GET_ALL = RULES.add("get_all", ADMIN, "List agents and conductors.", "GET")
GET_ONE = RULES.add("get_one", ADMIN, "Show an agent or a conductor.", "GET /{service_uuid}")
DELETE = RULES.add(
    "delete", ADMIN, "Delete the record of a host that is down for good.", "DELETE /{service_uuid}"
)
