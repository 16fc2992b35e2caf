# SPDX-License-Identifier: Apache-2.0
"""Admin, Accelerators, Devices: devices, hosts, and what is done to them."""

from __future__ import annotations

from typing import Any

from django import urls
from horizon import tables

from cyborg_dashboard import api, pages
from cyborg_dashboard.admin import acts
from cyborg_dashboard.api import Row
from cyborg_dashboard.tables import Table, column, filters

_HERE = "horizon:admin:accelerator_devices"


def _host_url(row: Row) -> str:
    return urls.reverse(f"{_HERE}:host", args=(row["hostname"],))


class _Filter(tables.FilterAction):
    filter_type = "server"
    filter_choices = filters(
        "devices", "hostname", "type", "vendor", "model", "status", "health", "tainted", "missing"
    )


class Devices(Table):
    """The devices of all hosts."""

    uuid = column("uuid", link=f"{_HERE}:detail")
    hostname = column("hostname", link=_host_url)
    address = column("address")
    type = column("type")
    vendor = column("vendor")
    model = column("model")
    status = column("status")
    health = column("health")
    tainted = column("tainted")

    class Meta:
        """Options."""

        name = "devices"
        verbose_name = "Devices"
        table_actions = (_Filter,)
        row_actions = tuple(
            acts.link("devices", name) for name in ("disable", "enable", "taint", "untaint")
        )


class Deployables(Table):
    """The deployables of a device."""

    name = column("name")
    num_accelerators = column("num_accelerators")
    driver_name = column("driver_name")
    program = column("program")
    attributes = column("attributes")
    withheld_reason = column("withheld_reason")

    class Meta:
        """Options."""

        name = "deployables"
        verbose_name = "Deployables"
        hidden_title = False
        pagination_param, prev_pagination_param = "deployable", "before_deployable"


class Handles(Table):
    """The attach handles of a device."""

    attach_handle_info = column("attach_handle_info")
    resource_class = column("resource_class")
    state = column("state")
    state_reason = column("state_reason")
    instance_uuid = column("instance_uuid")
    project_id = column("project_id")

    class Meta:
        """Options."""

        name = "handles"
        verbose_name = "Attach handles"
        hidden_title = False
        pagination_param, prev_pagination_param = "handle", "before_handle"


class History(Table):
    """What happened to a device."""

    started_at = column("started_at")
    ended_at = column("ended_at")
    kind = column("kind")
    resource_class = column("resource_class")
    reason = column("reason")
    actor = column("actor")
    instance_uuid = column("instance_uuid")

    class Meta:
        """Options."""

        name = "history"
        verbose_name = "History"
        hidden_title = False
        pagination_param, prev_pagination_param = "entry", "before_entry"


class Users(Table):
    """The oldest requests that use a host."""

    arq_uuid = column("arq_uuid")
    state = column("state")
    project_id = column("project_id")
    instance_uuid = column("instance_uuid")
    device_uuid = column(
        "device_uuid", link=lambda row: urls.reverse(f"{_HERE}:detail", args=(row["device_uuid"],))
    )

    class Meta:
        """Options."""

        name = "users"
        verbose_name = "Accelerator requests that use it"
        hidden_title = False

    def get_object_id(self, row: Row) -> str:
        """The request."""
        return str(row["arq_uuid"])


class Operations(Table):
    """The oldest operations that program a host."""

    uuid = column("uuid")
    state = column("state")
    asked_by = column("asked_by")
    deployable_uuid = column("deployable_uuid")

    class Meta:
        """Options."""

        name = "operations"
        verbose_name = "Operations in progress"
        hidden_title = False


class DevicesView(pages.ListView):
    """The list."""

    page_title = "Devices"
    table_class = Devices
    collection = "devices"


class DeviceView(pages.PageView):
    """A device with its parts."""

    page_title = "Device {{ view.kwargs.uuid }}"
    index = f"{_HERE}:index"
    table_classes = (Deployables, Handles, History)

    def thing(self, cyborg: api.Cyborg) -> Row:
        """The device."""
        found: Row = cyborg.call("GET", f"/devices/{self.kwargs['uuid']}")
        return found

    def links(self) -> list[tuple[str, str]]:
        """What may be done to it."""
        return acts.links(self.request, "devices", self.shown["uuid"], self.shown)

    def get_deployables_data(self) -> list[Row]:
        """A page of its deployables."""
        return self._of_device(Deployables, "deployables")

    def get_handles_data(self) -> list[Row]:
        """A page of its handles."""
        if not api.may(self.request, "cyborg:attach_handle:get_all"):
            return []
        return self._of_device(Handles, "attach_handles")

    def get_history_data(self) -> list[Row]:
        """A page of its history."""
        return self._of_device(History, "history")

    def _of_device(self, table: type[tables.DataTable], collection: str) -> list[Row]:
        if not api.is_newest(self.request):
            return []
        return self.rows(table, collection, {"device_uuid": self.kwargs["uuid"]})


class HostView(pages.PageView):
    """A host, and who uses it."""

    page_title = "Host {{ view.shown.name }}"
    index = f"{_HERE}:index"
    table_classes = (Users, Operations)

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
        """The oldest."""
        return list(self.shown["users"])

    def get_operations_data(self) -> list[Row]:
        """The oldest."""
        return list(self.shown["operations"])


urlpatterns = [
    urls.path("", DevicesView.as_view(), name="index"),
    urls.path("device/<uuid:uuid>/", DeviceView.as_view(), name="detail"),
    urls.path("host/<path:host>/", HostView.as_view(), name="host"),
    *acts.urlpatterns,
]
