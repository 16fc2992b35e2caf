# SPDX-License-Identifier: Apache-2.0
"""Admin, Accelerators, Devices: devices, hosts, and what is done to them."""

from __future__ import annotations

from typing import Any

from django import urls
from horizon import tables

from cyborg_dashboard import api, pages
from cyborg_dashboard.admin import acts, program
from cyborg_dashboard.api import Row
from cyborg_dashboard.tables import filters, host_url, link, table

_HERE = "horizon:admin:accelerator_devices"


class _Filter(tables.FilterAction):
    filter_type = "server"
    filter_choices = filters(
        "devices", "hostname", "type", "vendor", "model", "status", "health", "tainted", "missing"
    )


def _has_program(row: Row) -> bool:
    return row["program"] is not None


def _device_url(row: Row) -> str:
    return str(urls.reverse(f"{_HERE}:detail", args=(row["device_uuid"],)))


_DEVICES = table(
    *("devices", "Devices", "uuid", "hostname", "address", "type", "vendor", "model"),
    *("status", "health", "tainted"),
    links={"uuid": f"{_HERE}:detail", "hostname": host_url},
    table_actions=(_Filter,), row_actions=acts.row_actions("devices"),
)
_DEPLOYABLES = table(
    *("deployables", "Deployables", "name", "num_accelerators", "driver_name", "program"),
    *("attributes", "withheld_reason"),
    row_actions=(
        link("program", "Program", f"{_HERE}:program", program.RULE, _has_program),
    ),
)
_HANDLES = table(
    *("handles", "Attach handles", "attach_handle_info", "resource_class", "state"),
    *("state_reason", "instance_uuid", "project_id"),
)
_HISTORY = table(
    *("history", "History", "started_at", "ended_at", "kind", "resource_class", "reason", "actor"),
    "instance_uuid",
)
_USERS = table(
    *("users", "The oldest accelerator requests that use it", "arq_uuid", "state", "project_id"),
    *("instance_uuid", "device_uuid"), key=("arq_uuid",), links={"device_uuid": _device_url},
)
_OPERATIONS = table(
    *("operations", "The oldest operations in progress", "uuid", "state", "asked_by"),
    "deployable_uuid", links={"uuid": f"{_HERE}:operation"},
)


class DevicesView(pages.ListView):
    """The list."""

    page_title = "Devices"
    table_class = _DEVICES
    collection = "devices"


class DeviceView(pages.PageView):
    """A device with its parts."""

    page_title = "Device {{ view.kwargs.uuid }}"
    index = f"{_HERE}:index"
    table_classes = (_DEPLOYABLES, _HANDLES, _HISTORY)

    def thing(self, cyborg: api.Cyborg) -> Row:
        """The device."""
        found: Row = cyborg.call("GET", f"/devices/{self.kwargs['uuid']}")
        return found

    def links(self) -> list[tuple[str, str]]:
        """What may be done to it."""
        return acts.links(self.request, "devices", self.shown["uuid"], self.shown)

    def get_deployables_data(self) -> list[Row]:
        """A page of its deployables."""
        return self._of_device(_DEPLOYABLES, "deployables")

    def get_handles_data(self) -> list[Row]:
        """A page of its handles."""
        if not api.may(self.request, "cyborg:attach_handle:get_all"):
            return []
        return self._of_device(_HANDLES, "attach_handles")

    def get_history_data(self) -> list[Row]:
        """A page of its history."""
        return self._of_device(_HISTORY, "history")

    def _of_device(self, kind: type[tables.DataTable], collection: str) -> list[Row]:
        if not api.is_newest(self.request):
            return []
        return self.rows(kind, collection, {"device_uuid": self.kwargs["uuid"]})


class HostView(pages.PageView):
    """A host, and who uses it."""

    page_title = "Host {{ view.shown.name }}"
    index = f"{_HERE}:index"
    table_classes = (_USERS, _OPERATIONS)

    def thing(self, cyborg: api.Cyborg) -> Row:
        """The host."""
        cyborg.need(api.NEWEST)
        found: Row = cyborg.call("GET", f"/hosts/{api.quoted(self.kwargs['host'])}")
        return found

    def facts(self) -> dict[str, Any]:
        """All but the lists."""
        lists = {"users", "operations"}
        return {name: value for name, value in self.shown.items() if name not in lists}

    def links(self) -> list[tuple[str, str]]:
        """What may be done to it."""
        return acts.links(self.request, "hosts", self.shown["name"], self.shown)

    def get_users_data(self) -> list[Row]:
        """The oldest; the API names many more than fit a page, and counts them."""
        return list(self.shown["users"][: api.page_size(self.request)])

    def get_operations_data(self) -> list[Row]:
        """The oldest."""
        return list(self.shown["operations"][: api.page_size(self.request)])


urlpatterns = [
    urls.path("", DevicesView.as_view(), name="index"),
    urls.path("device/<uuid:uuid>/", DeviceView.as_view(), name="detail"),
    urls.path("host/<path:host>/", HostView.as_view(), name="host"),
    *acts.urlpatterns("devices", "hosts"),
    *program.urlpatterns,
]
