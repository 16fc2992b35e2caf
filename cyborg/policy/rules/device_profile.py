# SPDX-License-Identifier: Apache-2.0
"""Policy rules of device profiles."""

from __future__ import annotations

from cyborg.policy.rules.base import ADMIN, ADMIN_OR_SERVICE, PROJECT_READER_OR_ADMIN, Rules

RULES = Rules("cyborg:device_profile", "/v2/device_profiles")
GET_ALL = RULES.add(
    "get_all",
    PROJECT_READER_OR_ADMIN,
    "List the device profiles that are public or shared with your project, or all as an "
    "administrator.",
    "GET",
)
GET_ONE = RULES.add(
    "get_one",
    PROJECT_READER_OR_ADMIN,
    "Show a device profile.",
    "GET /{device_profile_uuid or name}",
)
CREATE = RULES.add("create", ADMIN, "Create a device profile.", "POST")
UPDATE = RULES.add(
    "update",
    ADMIN,
    "Replace, enable or disable a device profile.",
    "PUT /{device_profile_uuid or name}",
    "POST /{device_profile_uuid or name}/enable",
    "POST /{device_profile_uuid or name}/disable",
)
DELETE = RULES.add(
    "delete",
    ADMIN,
    "Delete device profiles.",
    "DELETE /{device_profile_uuid or name}",
    "DELETE ?value={names}",
)
CANDIDATES = RULES.add(
    "candidates",
    ADMIN_OR_SERVICE,
    "List the hosts and providers on which a device profile could be bound.",
    "GET /{device_profile_uuid or name}/candidates",
)
