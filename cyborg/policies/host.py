# SPDX-License-Identifier: Apache-2.0
"""Policy rules of hosts, which are hardware and belong to no project."""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policies import base

GET_ONE = "cyborg:host:get_one"
DRAIN = "cyborg:host:drain"
UNDRAIN = "cyborg:host:undrain"

TAINT = "cyborg:host:taint"

_MEMBER = "/v2/hosts/{host_name}"


def list_rules() -> list[policy.DocumentedRuleDefault]:
    """The rules of this resource."""
    return [
        base.rule(GET_ONE, base.ADMIN, "Show a host and who uses it.", ("GET", _MEMBER)),
        base.rule(
            DRAIN,
            base.ADMIN,
            "Drain a host, so that nothing new of it is given out.",
            ("POST", f"{_MEMBER}/drain"),
        ),
        base.rule(
            UNDRAIN,
            base.ADMIN,
            "Give the devices of a drained host out again.",
            ("POST", f"{_MEMBER}/undrain"),
        ),
        base.rule(
            TAINT,
            base.ADMIN,
            "Keep a host from guests whose device profile does not tolerate that, or end that.",
            ("POST", f"{_MEMBER}/taint"),
            ("POST", f"{_MEMBER}/untaint"),
        ),
    ]
