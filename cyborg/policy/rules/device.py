# SPDX-License-Identifier: Apache-2.0
"""Policy rules of devices, which are hardware and belong to no project."""

from __future__ import annotations

from cyborg.policy.rules.base import ADMIN, PROJECT_MANAGER_OR_ADMIN, Rules

RULES = Rules("cyborg:device", "/v2/devices")
GET_ALL = RULES.add("get_all", PROJECT_MANAGER_OR_ADMIN, "List devices.", "GET")
GET_ONE = RULES.add("get_one", PROJECT_MANAGER_OR_ADMIN, "Show a device.", "GET /{device_uuid}")
ENABLE = RULES.add(
    "enable", ADMIN, "Enable a device, so that it is offered again.", "POST /{device_uuid}/enable"
)
DISABLE = RULES.add(
    "disable",
    ADMIN,
    "Disable a device, so that it is not offered any more.",
    "POST /{device_uuid}/disable",
)
TAINT = RULES.add(
    "taint",
    ADMIN,
    "Taint a device or remove the taint. Only profiles that tolerate taints get tainted devices.",
    "POST /{device_uuid}/taint",
    "POST /{device_uuid}/untaint",
)
DELETE = RULES.add(
    "delete",
    ADMIN,
    "Delete the record of a device that was removed for good.",
    "DELETE /{device_uuid}",
)
