# SPDX-License-Identifier: Apache-2.0
"""Policy rules of services: the agents and the conductors."""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policy.rules import base

GET_ALL = "cyborg:service:get_all"
GET_ONE = "cyborg:service:get_one"
DELETE = "cyborg:service:delete"

_COLLECTION = "/v2/services"


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """The rules of this resource."""
    return [
        base.rule(GET_ALL, base.ADMIN, "List agents and conductors.", ("GET", _COLLECTION)),
        base.rule(
            GET_ONE,
            base.ADMIN,
            "Show an agent or a conductor.",
            ("GET", f"{_COLLECTION}/{{service_uuid}}"),
        ),
        base.rule(
            DELETE,
            base.ADMIN,
            "Delete the record of a host that is down for good.",
            ("DELETE", f"{_COLLECTION}/{{service_uuid}}"),
        ),
    ]
