# SPDX-License-Identifier: Apache-2.0
"""Policy rules of usages. Who is no administrator sees those of the own project."""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policy.rules import base

GET_ALL = "cyborg:usage:get_all"


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """The rules of this resource."""
    return [
        base.rule(
            GET_ALL,
            base.PROJECT_READER_OR_ADMIN,
            "Show what your project uses, or any project as an administrator.",
            ("GET", "/v2/usages"),
        ),
    ]
