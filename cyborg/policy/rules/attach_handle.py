# SPDX-License-Identifier: Apache-2.0
"""Policy rules of attach handles, which say who has what."""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policy.rules import base

GET_ALL = "cyborg:attach_handle:get_all"


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """The rules of this resource."""
    return [
        base.rule(
            GET_ALL,
            base.ADMIN,
            "List attach handles, with their states and who has them.",
            ("GET", "/v2/attach_handles"),
        ),
    ]
