# SPDX-License-Identifier: Apache-2.0
"""Policy rules of the history. Others than administrators see their own project."""

from __future__ import annotations

from cyborg.policy.rules.base import PROJECT_READER_OR_ADMIN, Rules

RULES = Rules("cyborg:history", "/v2")
GET_ALL = RULES.add(
    "get_all",
    PROJECT_READER_OR_ADMIN,
    "List the history of the project, or of the whole cloud for administrators.",
    "GET /history",
    "GET /devices/{device_uuid}/history",
)
