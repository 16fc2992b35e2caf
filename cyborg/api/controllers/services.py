# SPDX-License-Identifier: Apache-2.0
"""``/v2/services``: the agents, each with its host, and the conductors."""

from __future__ import annotations

from typing import Any

from cyborg import liveness
from cyborg.api import declare, versions
from cyborg.api.controllers.resource import Resource, lists, shows
from cyborg.api.representation import timestamp
from cyborg.api.request import Request
from cyborg.api.types import removals
from cyborg.api.types import services as types
from cyborg.db.paging import Page
from cyborg.hosts import removal
from cyborg.policy.rules import service as policies

_SINCE = versions.REGULAR
_MEMBER = declare.Member(kind="Service")


class Services(Resource):
    """Services."""

    collection = "services"
    kind = types.Service

    @lists(policies.GET_ALL, kind, "services", since=_SINCE, query=types.QUERY)
    def get_all(self, request: Request, page: Page, **wanted: Any) -> list[liveness.ServiceState]:
        """List agents and conductors."""
        return liveness.list_services(page, **wanted)

    @shows(policies.GET_ONE, kind, since=_SINCE, member=_MEMBER)
    def get_one(self, request: Request, uuid: str) -> liveness.ServiceState:
        """Show an agent or a conductor."""
        return liveness.get_service(uuid)

    @declare.operation(policies.DELETE, since=_SINCE, member=_MEMBER, **removals.OF_HARDWARE)
    def delete_one(self, request: Request, uuid: str, given: dict[str, Any]) -> dict[str, Any]:
        """Remove the record of a host that is down for good."""
        return removals.answer(removal.remove_host(uuid, **given))

    def told(self, request: Request, service: liveness.ServiceState) -> dict[str, Any]:
        """The last sign of life, the errors of drivers, and why no more is offered."""
        return {
            "last_seen": timestamp(service.last_seen),
            "driver_errors": service.errors,
            "not_offered_reasons": service.not_offered_reasons or [],
        }
