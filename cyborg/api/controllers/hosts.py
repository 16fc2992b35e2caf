# SPDX-License-Identifier: Apache-2.0
"""``/v2/hosts``: drain a host or taint it, and see who uses it still."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from cyborg import liveness
from cyborg.api import declare, versions
from cyborg.api.controllers.resource import Resource, shows
from cyborg.api.representation import timestamp
from cyborg.api.request import Request
from cyborg.api.types import fields
from cyborg.api.types import hosts as types
from cyborg.arqs import draining
from cyborg.policies import host as policies
from cyborg.programming.operations import moment

_SINCE = versions.DRAIN
_MEMBER = declare.Member(name="host", type=fields.TEXT)


class Hosts(Resource):
    """Hosts."""

    collection = "hosts"
    kind = types.Host
    actions: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "drain": {"POST": "drain"},
        "undrain": {"POST": "undrain"},
        "taint": {"POST": "taint"},
        "untaint": {"POST": "untaint"},
    }

    @shows(policies.GET_ONE, kind, since=_SINCE, member=_MEMBER)
    def get_one(self, request: Request, name: str) -> draining.Drain:
        """Show a host and who uses it."""
        return draining.get_host(name, request.max_limit)

    @shows(
        policies.DRAIN,
        kind,
        since=_SINCE,
        member=_MEMBER,
        body=declare.Body(name="drain", type=types.Reason, optional_since=_SINCE),
    )
    def drain(self, request: Request, name: str, body: dict[str, Any]) -> draining.Drain:
        """Drain a host."""
        return draining.drain(name, body.get("reason"), request.max_limit)

    @shows(policies.UNDRAIN, kind, since=_SINCE, member=_MEMBER)
    def undrain(self, request: Request, name: str) -> draining.Drain:
        """Give the devices of a drained host out again."""
        return draining.undrain(name, request.max_limit)

    @shows(
        policies.TAINT,
        kind,
        since=versions.TAINTS,
        member=_MEMBER,
        body=declare.Body(name="taint", type=types.Reason, optional_since=versions.TAINTS),
    )
    def taint(self, request: Request, name: str, body: dict[str, Any]) -> draining.Drain:
        """Keep a host from guests whose profile does not tolerate that."""
        return draining.taint(name, body.get("reason"), request.max_limit)

    @shows(policies.TAINT, kind, since=versions.TAINTS, member=_MEMBER)
    def untaint(self, request: Request, name: str) -> draining.Drain:
        """Give the devices of a host to every guest again."""
        return draining.untaint(name, request.max_limit)

    def view(self, request: Request, found: draining.Drain) -> dict[str, Any]:
        """A host with the oldest of its users."""
        host = found.host
        since = None if host.drained_ms is None else moment(host.drained_ms)
        return {
            "name": host.name,
            "hostname": host.node,
            "state": liveness.DOWN if host.down else liveness.UP,
            "drained": host.drained,
            "drain_reason": host.drain_reason,
            "drained_at": timestamp(since),
            "tainted": host.tainted,
            "taint_reason": host.taint_reason,
            "in_use": found.in_use,
            "users": [asdict(user) for user in found.users],
        }
