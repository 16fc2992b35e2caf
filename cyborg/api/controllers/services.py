# SPDX-License-Identifier: Apache-2.0
"""``/v2/services``: the agents, each with its host, and the conductors."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cyborg import liveness
from cyborg.api import declare, pages, versions
from cyborg.api.controllers.resource import Resource
from cyborg.api.representation import self_link, timestamp
from cyborg.api.request import Request
from cyborg.api.schemas import fields, given_up
from cyborg.api.schemas import services as schemas
from cyborg.arqs import removal
from cyborg.policies import service as policies

_SINCE = versions.SERVICES


class Services(Resource):
    """Services."""

    @declare.operation(
        policies.GET_ALL, since=_SINCE, query=schemas.QUERY, answer=schemas.SERVICES
    )
    def get_all(self, request: Request, given: dict[str, Any]) -> dict[str, Any]:
        """List agents and conductors."""
        wanted, page = pages.read(request, given)
        found = liveness.list_services(page, **wanted)
        return pages.answer(request, "services", "services", found, page, _view)

    @declare.operation(
        policies.GET_ONE, since=_SINCE, member=fields.member("Service"), answer=schemas.SERVICE
    )
    def get_one(self, request: Request, uuid: str) -> dict[str, Any]:
        """Show an agent or a conductor."""
        return _view(request, liveness.get_service(uuid))

    @declare.operation(
        policies.DELETE,
        since=_SINCE,
        member=fields.member("Service"),
        query=given_up.QUERY,
        success=202,
        answer=given_up.GIVEN_UP,
        faults=[409],
    )
    def delete_one(self, request: Request, uuid: str, given: dict[str, Any]) -> dict[str, Any]:
        """Remove the record of a host that is down for good."""
        return {"given_up": asdict(removal.remove_host(uuid, force=given.get("force", False)))}


def _view(request: Request, service: liveness.Service) -> dict[str, Any]:
    return {
        "uuid": service.uuid,
        "binary": service.binary,
        "host": service.host,
        "hostname": service.hostname,
        "state": service.state,
        "last_seen": timestamp(service.last_seen),
        "driver_errors": service.driver_errors,
        "links": [self_link(request, "services", service.uuid)],
        "created_at": timestamp(service.created_at),
    }
