# SPDX-License-Identifier: Apache-2.0
"""Policy rules of usages. Others than administrators see their own project."""

from __future__ import annotations

from cyborg.policy.rules.base import PROJECT_READER_OR_ADMIN, Rules

RULES = Rules("cyborg:usage", "/v2/usages")
GET_ALL = RULES.add(
    "get_all",
    PROJECT_READER_OR_ADMIN,
    "Show what your project uses, or any project as an administrator.",
    "GET",
)
