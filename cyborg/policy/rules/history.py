# SPDX-License-Identifier: Apache-2.0
"""Policy rules of the history. Who is no administrator sees the entries of the own project."""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policy.rules import base

GET_ALL = "cyborg:history:get_all"

_DEVICE = "/v2/devices/{device_uuid}/history"


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """The rules of this resource."""
    return [
        base.rule(
            GET_ALL,
            base.PROJECT_READER_OR_ADMIN,
            "List the history of the project, or of the whole cloud for administrators.",
            ("GET", "/v2/history"),
            ("GET", _DEVICE),
        ),
    ]
