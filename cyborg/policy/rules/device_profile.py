# SPDX-License-Identifier: Apache-2.0
"""Policy rules of device profiles."""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policy.rules import base

GET_ALL = "cyborg:device_profile:get_all"
GET_ONE = "cyborg:device_profile:get_one"
CREATE = "cyborg:device_profile:create"
UPDATE = "cyborg:device_profile:update"
DELETE = "cyborg:device_profile:delete"
CANDIDATES = "cyborg:device_profile:candidates"

_COLLECTION = "/v2/device_profiles"


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """The rules of this resource."""
    return [
        base.rule(
            GET_ALL,
            base.PROJECT_READER_OR_ADMIN,
            "List the device profiles that are public or shared with your project, or all as an "
            "administrator.",
            ("GET", _COLLECTION),
        ),
        base.rule(
            GET_ONE,
            base.PROJECT_READER_OR_ADMIN,
            "Show a device profile.",
            ("GET", f"{_COLLECTION}/{{device_profile_uuid or name}}"),
        ),
        base.rule(CREATE, base.ADMIN, "Create a device profile.", ("POST", _COLLECTION)),
        base.rule(
            UPDATE,
            base.ADMIN,
            "Replace, enable or disable a device profile.",
            ("PUT", f"{_COLLECTION}/{{device_profile_uuid or name}}"),
            ("POST", f"{_COLLECTION}/{{device_profile_uuid or name}}/enable"),
            ("POST", f"{_COLLECTION}/{{device_profile_uuid or name}}/disable"),
        ),
        base.rule(
            DELETE,
            base.ADMIN,
            "Delete device profiles.",
            ("DELETE", f"{_COLLECTION}/{{device_profile_uuid or name}}"),
            ("DELETE", f"{_COLLECTION}?value={{names}}"),
        ),
        base.rule(
            CANDIDATES,
            base.ADMIN_OR_SERVICE,
            "List the hosts and providers on which a device profile could be bound.",
            ("GET", f"{_COLLECTION}/{{device_profile_uuid or name}}/candidates"),
        ),
    ]
