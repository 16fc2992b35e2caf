# SPDX-License-Identifier: Apache-2.0
"""Policy rules of attach handles, which say who has what."""

from __future__ import annotations

from cyborg.policy.rules.base import ADMIN, Rules

RULES = Rules("cyborg:attach_handle", "/v2/attach_handles")
GET_ALL = RULES.add(
    "get_all", ADMIN, "List attach handles, with their states and who has them.", "GET"
)
