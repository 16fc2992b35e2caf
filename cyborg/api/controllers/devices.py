# SPDX-License-Identifier: Apache-2.0
"""``/v2/devices``: the accelerator cards and functions of all hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from cyborg.api import declare, pages, versions
from cyborg.api.controllers.resource import Resource
from cyborg.api.representation import self_link, timestamp
from cyborg.api.request import Request
from cyborg.api.schemas import devices as schemas
from cyborg.api.schemas import fields, given_up
from cyborg.arqs import removal
from cyborg.db import models
from cyborg.inventory import admin, query
from cyborg.policies import device as policies


class Devices(Resource):
    """Devices."""

    actions: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "enable": {"POST": "enable"},
        "disable": {"POST": "disable"},
    }

    @declare.operation(policies.GET_ALL, query=schemas.QUERY, answer=schemas.DEVICES)
    def get_all(self, request: Request, given: dict[str, Any]) -> dict[str, Any]:
        """List devices."""
        wanted, page = pages.read(request, given)
        # Up to 2.3 it is accepted and narrows nothing.
        wanted.pop("name", None)
        found = query.list_devices(page, **wanted)
        return pages.answer(request, "devices", "devices", found, page, _view)

    @declare.operation(policies.GET_ONE, member=fields.member("Device"), answer=schemas.DEVICE)
    def get_one(self, request: Request, uuid: str) -> dict[str, Any]:
        """Show a device."""
        return _view(request, query.get_device(uuid))

    @declare.operation(
        policies.DELETE,
        since=versions.SERVICES,
        member=fields.member("Device"),
        query=given_up.QUERY,
        success=202,
        answer=given_up.GIVEN_UP,
        faults=[409],
    )
    def delete_one(self, request: Request, uuid: str, given: dict[str, Any]) -> dict[str, Any]:
        """Remove the record of a device that is gone for good."""
        return {"given_up": asdict(removal.remove_device(uuid, force=given.get("force", False)))}

    @declare.operation(policies.ENABLE, member=fields.member("Device"), success=204)
    def enable(self, request: Request, uuid: str) -> None:
        """Put a device back into service."""
        admin.set_device_status(uuid, admin.ENABLED)

    @declare.operation(policies.DISABLE, member=fields.member("Device"), success=204)
    def disable(self, request: Request, uuid: str) -> None:
        """Take a device out of service."""
        admin.set_device_status(uuid, admin.MAINTAINING)


def _view(request: Request, device: models.Device) -> dict[str, Any]:
    status = {"status": device.status} if request.version >= versions.DEVICE_STATUS else {}
    health: dict[str, Any] = {}
    if request.version >= versions.FACTS:
        health = {
            "health": query.HEALTHY if device.unhealthy is None else query.UNHEALTHY,
            "health_reason": device.unhealthy,
            "missing": device.missing,
        }
    return {
        "uuid": device.uuid,
        "type": device.type,
        "vendor": device.vendor,
        "model": device.model,
        "std_board_info": device.std_board_info,
        "vendor_board_info": device.vendor_board_info,
        # Nova's name of the host, as upstream shows it.
        "hostname": device.host.node,
        **status,
        **health,
        "links": [self_link(request, "devices", device.uuid)],
        "created_at": timestamp(device.created_at),
        "updated_at": timestamp(device.updated_at),
    }
