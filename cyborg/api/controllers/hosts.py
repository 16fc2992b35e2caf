# SPDX-License-Identifier: Apache-2.0
"""``/v2/hosts``: drain a host or taint it, and see who uses it still."""

from __future__ import annotations

import functools
from typing import Any

from cyborg import host_keys, liveness
from cyborg.api import declare, versions
from cyborg.api.controllers.resource import Resource, actions, shows
from cyborg.api.representation import filled, timestamp_of_ms
from cyborg.api.request import Request
from cyborg.api.types import fields
from cyborg.api.types import hosts as types
from cyborg.db import models
from cyborg.hosts import draining
from cyborg.inventory import nodes
from cyborg.policy.rules import host as policies

_SINCE = versions.REGULAR
_MEMBER = declare.Member(name="host", type=fields.TEXT)
_DRAIN = declare.Body(name="drain", type=types.Reason, optional_since=_SINCE)
_TAINT = declare.Body(name="taint", type=types.Reason, optional_since=_SINCE)
_shows = functools.partial(shows, kind=types.Host, since=_SINCE, member=_MEMBER)


class Hosts(Resource):
    """Hosts."""

    collection = "hosts"
    kind = types.Host
    actions = actions(POST=["drain", "undrain", "taint", "untaint"]) | {
        "keys": {"GET": "get_keys", "POST": "enrol_key", "DELETE": "revoke_keys"}
    }

    @_shows(policies.GET_ONE)
    def get_one(self, request: Request, name: str) -> draining.Drain:
        """Show a host and who uses it."""
        return draining.get_host(name, request.max_limit)

    @_shows(policies.DRAIN, body=_DRAIN)
    def drain(self, request: Request, name: str, body: dict[str, Any]) -> draining.Drain:
        """Drain a host."""
        return draining.drain(name, body.get("reason"), request.max_limit)

    @_shows(policies.UNDRAIN)
    def undrain(self, request: Request, name: str) -> draining.Drain:
        """Give the devices of a drained host out again."""
        return draining.undrain(name, request.max_limit)

    @_shows(policies.TAINT, body=_TAINT)
    def taint(self, request: Request, name: str, body: dict[str, Any]) -> draining.Drain:
        """Taint a host: only profiles with accel:tolerate_taint get its devices."""
        return draining.taint(name, body.get("reason"), request.max_limit)

    @_shows(policies.TAINT)
    def untaint(self, request: Request, name: str) -> draining.Drain:
        """Give the devices of a host to every guest again."""
        return draining.untaint(name, request.max_limit)

    @declare.operation(policies.GET_KEYS, since=_SINCE, member=_MEMBER, answer=types.HostKeys)
    def get_keys(self, request: Request, name: str) -> dict[str, Any]:
        """Show the public keys of a host."""
        return {"keys": [_key(key) for key in host_keys.list_keys(name)]}

    @declare.operation(
        policies.ENROL_KEY,
        since=_SINCE,
        member=_MEMBER,
        body=declare.Body(name="host_key", type=types.EnrolKey),
        success=201,
        answer=types.HostKey,
        faults=[409],
    )
    def enrol_key(self, request: Request, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Enrol a public key of a host; messages signed with it are trusted."""
        return _key(nodes.enrol(name, body["public_key"], body.get("node")))

    @declare.operation(
        policies.REVOKE_KEYS, since=_SINCE, member=_MEMBER, query=types.REVOKED_KEY, success=204
    )
    def revoke_keys(self, request: Request, name: str, given: dict[str, Any]) -> None:
        """Revoke a key of a host, or all of them."""
        host_keys.revoke(name, given.get("fingerprint"))

    def view(self, request: Request, found: draining.Drain) -> dict[str, Any]:
        """A host with the oldest of its users."""
        host = found.host
        told = {
            "hostname": host.node,
            "state": liveness.DOWN if host.down else liveness.UP,
            "drained_at": timestamp_of_ms(host.drained_ms),
            "in_use": found.in_use,
            "users": [user._asdict() for user in found.users],
            "programming": found.programming,
            "operations": [
                filled(types.HostOperation, request.version, each, {}) for each in found.operations
            ],
        }
        return filled(self.kind, request.version, host, told)


def _key(key: models.HostKey) -> dict[str, Any]:
    """A key as answers show it."""
    told = {
        "state": types.ENROLLED if key.revoked_ms is None else types.REVOKED,
        "revoked_at": timestamp_of_ms(key.revoked_ms),
        "used_at": timestamp_of_ms(key.used_ms),
    }
    return filled(types.HostKey, _SINCE, key, told)
