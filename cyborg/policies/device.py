# SPDX-License-Identifier: Apache-2.0
"""Policy rules of devices, which are hardware of the whole cloud."""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policies import base

GET_ALL = "cyborg:device:get_all"
GET_ONE = "cyborg:device:get_one"
ENABLE = "cyborg:device:enable"
DISABLE = "cyborg:device:disable"
DELETE = "cyborg:device:delete"

_COLLECTION = "/v2/devices"


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """The rules, each named by what it permits."""
    return [
        base.rule(
            GET_ALL, base.PROJECT_MANAGER_OR_ADMIN, "List devices.", ("GET", _COLLECTION)
        ),
        base.rule(
            GET_ONE,
            base.PROJECT_MANAGER_OR_ADMIN,
            "Show a device.",
            ("GET", f"{_COLLECTION}/{{device_uuid}}"),
        ),
        base.rule(
            ENABLE,
            base.ADMIN,
            "Put a device back into service.",
            ("POST", f"{_COLLECTION}/{{device_uuid}}/enable"),
        ),
        base.rule(
            DISABLE,
            base.ADMIN,
            "Take a device out of service.",
            ("POST", f"{_COLLECTION}/{{device_uuid}}/disable"),
        ),
        base.rule(
            DELETE,
            base.ADMIN,
            "Remove the record of a device that is gone for good.",
            ("DELETE", f"{_COLLECTION}/{{device_uuid}}"),
        ),
    ]
