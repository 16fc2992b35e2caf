# SPDX-License-Identifier: Apache-2.0
"""Policy rule of the summary of accelerators, which names hosts."""

from __future__ import annotations

from cyborg.policy.rules.base import ADMIN, Rules

RULES = Rules("cyborg:summary", "/v2/summary")
GET_ALL = RULES.add(
    "get_all", ADMIN, "Show how many accelerators each host has, and how many are free.", "GET"
)
