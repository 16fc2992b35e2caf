# SPDX-License-Identifier: Apache-2.0
"""Policy rules of devices, which are hardware and belong to no project."""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policy.rules import base

GET_ALL = "cyborg:device:get_all"
GET_ONE = "cyborg:device:get_one"
ENABLE = "cyborg:device:enable"
DISABLE = "cyborg:device:disable"
TAINT = "cyborg:device:taint"
DELETE = "cyborg:device:delete"

_COLLECTION = "/v2/devices"


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """The rules of this resource."""
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
            "Enable a device, so that it is offered again.",
            ("POST", f"{_COLLECTION}/{{device_uuid}}/enable"),
        ),
        base.rule(
            DISABLE,
            base.ADMIN,
            "Disable a device, so that it is not offered any more.",
            ("POST", f"{_COLLECTION}/{{device_uuid}}/disable"),
        ),
        base.rule(
            TAINT,
            base.ADMIN,
            "Taint a device, which only profiles that tolerate it get, or end that.",
            ("POST", f"{_COLLECTION}/{{device_uuid}}/taint"),
            ("POST", f"{_COLLECTION}/{{device_uuid}}/untaint"),
        ),
        base.rule(
            DELETE,
            base.ADMIN,
            "Delete the record of a device that was removed for good.",
            ("DELETE", f"{_COLLECTION}/{{device_uuid}}"),
        ),
    ]
