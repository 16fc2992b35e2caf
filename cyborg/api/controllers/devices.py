# SPDX-License-Identifier: Apache-2.0
"""``/v2/devices``: the accelerator cards and functions of all hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from cyborg.api import declare, versions
from cyborg.api.controllers.resource import Resource, lists, shows
from cyborg.api.representation import self_link, timestamp
from cyborg.api.request import Request
from cyborg.api.types import devices as types
from cyborg.api.types import removals
from cyborg.arqs import removal
from cyborg.db import models
from cyborg.db.paging import Page
from cyborg.inventory import admin, query
from cyborg.policies import device as policies

_MEMBER = declare.Member(kind="Device")


class Devices(Resource):
    """Devices."""

    collection = "devices"
    kind = types.Device
    actions: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "enable": {"POST": "enable"},
        "disable": {"POST": "disable"},
    }

    @lists(policies.GET_ALL, kind, "devices", query=types.QUERY)
    def get_all(self, request: Request, page: Page, **wanted: Any) -> list[models.Device]:
        """List devices."""
        # Up to 2.3 it is accepted and narrows nothing.
        wanted.pop("name", None)
        return query.list_devices(page, **wanted)

    @shows(policies.GET_ONE, kind, member=_MEMBER)
    def get_one(self, request: Request, uuid: str) -> models.Device:
        """Show a device."""
        return query.get_device(uuid)

    @declare.operation(
        policies.DELETE,
        since=versions.SERVICES,
        member=_MEMBER,
        query=removals.QUERY,
        success=202,
        answer=removals.Removal,
        faults=[409],
    )
    def delete_one(self, request: Request, uuid: str, given: dict[str, Any]) -> dict[str, Any]:
        """Remove the record of a device that is gone for good."""
        given_up = removal.remove_device(uuid, force=given.get("force", False))
        return removals.answer(given_up, request.version)

    @declare.operation(policies.ENABLE, member=_MEMBER, success=204)
    def enable(self, request: Request, uuid: str) -> None:
        """Put a device back into service."""
        admin.set_device_status(uuid, admin.ENABLED)

    @declare.operation(policies.DISABLE, member=_MEMBER, success=204)
    def disable(self, request: Request, uuid: str) -> None:
        """Take a device out of service."""
        admin.set_device_status(uuid, admin.MAINTAINING)

    def view(self, request: Request, device: models.Device) -> dict[str, Any]:
        """A device with its health."""
        return {
            "uuid": device.uuid,
            "type": device.type,
            "vendor": device.vendor,
            "model": device.model,
            "std_board_info": device.std_board_info,
            "vendor_board_info": device.vendor_board_info,
            # Nova's name of the host, as upstream shows it.
            "hostname": device.host.node,
            "status": device.status,
            "health": query.HEALTHY if device.unhealthy is None else query.UNHEALTHY,
            "health_reason": device.unhealthy,
            "missing": device.missing,
            "links": [self_link(request, self.collection, device.uuid)],
            "created_at": timestamp(device.created_at),
            "updated_at": timestamp(device.updated_at),
        }
