# SPDX-License-Identifier: Apache-2.0
"""Policy rules of hosts, which are hardware and belong to no project."""

from __future__ import annotations

from cyborg.policy.rules.base import ADMIN, Rules

RULES = Rules("cyborg:host", "/v2/hosts")
GET_ONE = RULES.add("get_one", ADMIN, "Show a host and who uses it.", "GET /{host_name}")
DRAIN = RULES.add(
    "drain",
    ADMIN,
    "Drain a host, so that nothing new of it is given out.",
    "POST /{host_name}/drain",
)
UNDRAIN = RULES.add(
    "undrain", ADMIN, "Give the devices of a drained host out again.", "POST /{host_name}/undrain"
)
TAINT = RULES.add(
    "taint",
    ADMIN,
    "Taint a host or remove the taint. Only profiles that tolerate taints get its devices.",
    "POST /{host_name}/taint",
    "POST /{host_name}/untaint",
)
GET_KEYS = RULES.add(
    "get_keys",
    ADMIN,
    "Show the public keys with which a host signs its messages.",
    "GET /{host_name}/keys",
)
ENROL_KEY = RULES.add(
    "enrol_key",
    ADMIN,
    "Enrol a public key of a host; messages signed with it are trusted.",
    "POST /{host_name}/keys",
)
REVOKE_KEYS = RULES.add(
    "revoke_keys",
    ADMIN,
    "Revoke one key of a host or all; messages signed with it are refused.",
    "DELETE /{host_name}/keys",
)
