# SPDX-License-Identifier: Apache-2.0
"""``/v2/devices``: the accelerator cards and functions of all hosts."""

from __future__ import annotations

from typing import Any

from cyborg import history
from cyborg.api import declare, pages, versions
from cyborg.api.controllers import history as histories
from cyborg.api.controllers.resource import Resource, actions, lists
from cyborg.api.request import Request
from cyborg.api.types import devices as types
from cyborg.api.types import fields, hosts, removals
from cyborg.api.types import history as history_types
from cyborg.common.reasons import shown_words
from cyborg.db.paging import Page
from cyborg.hosts import flags, removal
from cyborg.inventory import query
from cyborg.policy.rules import device as policies
from cyborg.policy.rules import history as history_policies

_SINCE = versions.REGULAR
#: What is read by who may not see hosts.
_DISABLED = "An administrator has disabled the device."
_TAINTED = "An administrator has tainted the device."
_UNHEALTHY = "The device is unhealthy."
_MEMBER = declare.Member(kind="Device")
_WHY = declare.Body(name="taint", type=hosts.Reason, optional_since=_SINCE)
_REASON = declare.Body(name="disable", type=hosts.Reason, optional_since=_SINCE)


class Devices(Resource):
    """Devices."""

    collection = "devices"
    kind = types.Device
    actions = actions(POST=["enable", "disable", "taint", "untaint"], GET=["history"])

    @lists(policies.GET_ALL, kind, "devices", query=types.QUERY)
    def get_all(self, request: Request, page: Page, **wanted: Any) -> list[query.ShownDevice]:
        """List devices."""
        # Up to 2.3 it is accepted and narrows nothing.
        wanted.pop("name", None)
        return query.list_devices(page, **wanted)

    @declare.operation(policies.GET_ONE, member=_MEMBER, answer=types.WholeDevice)
    def get_one(self, request: Request, uuid: str) -> dict[str, Any]:
        """Show a device."""
        is_new = request.version >= _SINCE
        device = query.get_device(uuid, readings=is_new and request.caller.sees_hosts)
        (shown,) = self.views(request, [device])
        return shown | ({"readings": device.readings} if is_new else {})

    @declare.operation(policies.DELETE, since=_SINCE, member=_MEMBER, **removals.OF_HARDWARE)
    def delete_one(self, request: Request, uuid: str, given: dict[str, Any]) -> dict[str, Any]:
        """Remove the record of a device that is gone for good."""
        return removals.answer(removal.remove_device(uuid, **given))

    @declare.operation(policies.ENABLE, member=_MEMBER, success=204, faults=[409])
    def enable(self, request: Request, uuid: str) -> None:
        """Put a device back into service."""
        flags.enable_device(uuid)

    @declare.operation(policies.DISABLE, member=_MEMBER, body=_REASON, success=204, faults=[409])
    def disable(self, request: Request, uuid: str, body: dict[str, Any]) -> None:
        """Take a device out of service."""
        flags.disable_device(uuid, body.get("reason"))

    @declare.operation(
        policies.TAINT, since=_SINCE, member=_MEMBER, body=_WHY, success=204, faults=[409]
    )
    def taint(self, request: Request, uuid: str, body: dict[str, Any]) -> None:
        """Taint a device: only profiles with accel:tolerate_taint get it."""
        flags.taint_device(uuid, body.get("reason"))

    @declare.operation(policies.TAINT, since=_SINCE, member=_MEMBER, success=204, faults=[409])
    def untaint(self, request: Request, uuid: str) -> None:
        """Give a device to every guest again."""
        flags.untaint_device(uuid)

    @declare.operation(
        history_policies.GET_ALL,
        since=_SINCE,
        member=_MEMBER,
        query=history_types.OF_DEVICE,
        answer=fields.page_of(history_types.HistoryEntry, "history"),
    )
    def history(self, request: Request, uuid: str, given: dict[str, Any]) -> dict[str, Any]:
        """List the history of a device, which may be gone."""
        wanted, page = pages.read(request, given)
        scope = request.caller.project_scope
        found = history.list_entries(scope, page, device_uuid=uuid, **wanted)
        if not found and not history.list_entries(scope, Page(limit=1), device_uuid=uuid):
            query.get_device(uuid)
        path = f"{self.collection}/{uuid}/history"
        return histories.History().page(request, path, "history", found, page)

    def told(self, request: Request, device: query.ShownDevice) -> dict[str, Any]:
        """The health, and the reasons that the caller may read."""
        return {
            # Nova's name of the host, as upstream shows it.
            "hostname": device.node,
            "disabled_reason": shown_words(request.caller, _DISABLED, device.disabled_reason),
            "taint_reason": shown_words(request.caller, _TAINTED, device.taint_reason),
            "health": query.HEALTHY if device.unhealthy is None else query.UNHEALTHY,
            "health_reason": shown_words(request.caller, _UNHEALTHY, device.unhealthy),
        }
