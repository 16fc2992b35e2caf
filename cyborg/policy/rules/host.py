# SPDX-License-Identifier: Apache-2.0
"""Policy rules of hosts, which are hardware and belong to no project."""

from __future__ import annotations

from oslo_policy import policy

from cyborg.policy.rules import base

GET_ONE = "cyborg:host:get_one"
DRAIN = "cyborg:host:drain"
UNDRAIN = "cyborg:host:undrain"

TAINT = "cyborg:host:taint"
GET_KEYS = "cyborg:host:get_keys"
ENROL_KEY = "cyborg:host:enrol_key"
REVOKE_KEYS = "cyborg:host:revoke_keys"

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
            "Taint a host, whose devices only profiles that tolerate it get, or end that.",
            ("POST", f"{_MEMBER}/taint"),
            ("POST", f"{_MEMBER}/untaint"),
        ),
        base.rule(
            GET_KEYS,
            base.ADMIN,
            "Show the public keys with which a host signs its messages.",
            ("GET", f"{_MEMBER}/keys"),
        ),
        base.rule(
            ENROL_KEY,
            base.ADMIN,
            "Enrol a public key of a host; messages signed with it are trusted.",
            ("POST", f"{_MEMBER}/keys"),
        ),
        base.rule(
            REVOKE_KEYS,
            base.ADMIN,
            "Revoke one key of a host or all; messages signed with it are refused.",
            ("DELETE", f"{_MEMBER}/keys"),
        ),
    ]
