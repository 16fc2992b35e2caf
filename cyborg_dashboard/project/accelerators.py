# SPDX-License-Identifier: Apache-2.0
"""Project, Accelerators, Own Accelerators: requests, allocations, and usage against quota."""

from __future__ import annotations

from typing import Any

from django import urls
from horizon import messages

from cyborg_dashboard import api, pages
from cyborg_dashboard.api import Row
from cyborg_dashboard.tables import Table, column

#: How Keystone's limits of resource classes are named, and that of all requests.
_CLASS, _REQUESTS = "class:", "accelerator_requests"


class Usage(Table):
    """The accelerators of each resource class, with the limit."""

    resource_class = column("resource_class")
    in_use = column("in_use")
    limit = column("limit", empty_value="no limit")
    hours = column("hours", verbose_name="Hours used so far")

    class Meta:
        """Options."""

        name = "usage"
        verbose_name = "Usage"
        hidden_title = False

    def get_object_id(self, row: Row) -> str:
        """The resource class."""
        return str(row["resource_class"])


class Requests(Table):
    """Accelerator requests, most of them of servers."""

    uuid = column("uuid")
    state = column("state")
    state_reason = column("state_reason")
    device_profile_name = column("device_profile_name")
    attach_handle_info = column("attach_handle_info")
    health = column("health")
    instance_uuid = column("instance_uuid")

    class Meta:
        """Options."""

        name = "requests"
        verbose_name = "Accelerator requests"
        hidden_title = False
        pagination_param, prev_pagination_param = "request", "before_request"


class Allocations(Table):
    """What consumers have that are no servers."""

    name = column("name")
    type = column("type")
    state = column("state")
    state_reason = column("state_reason")
    hosts = column("hosts")
    lease_ends_at = column("lease_ends_at")
    uuid = column("uuid")

    class Meta:
        """Options."""

        name = "allocations"
        verbose_name = "Allocations"
        hidden_title = False
        pagination_param, prev_pagination_param = "allocation", "before_allocation"


class OwnView(pages.PageView):
    """All of it."""

    page_title = "Accelerators of the Project"
    table_classes = (Usage, Requests, Allocations)

    def thing(self, _cyborg: api.Cyborg) -> Row:
        """The limits of the project by name, as Keystone has them."""
        services, region = self.request.user.service_catalog, self.request.user.services_region
        uuid = next(each["id"] for each in services if each["type"] == "accelerator")
        limits: Row = {}
        for kind, key in (("registered_limits", "default_limit"), ("limits", "resource_limit")):
            for row in api.keystone(self.request, f"/{kind}?service_id={uuid}")[kind]:
                if row["region_id"] in (None, region):
                    limits[row["resource_name"]] = row[key]
        return limits

    def facts(self) -> dict[str, Any]:
        """The limit that is no resource class's."""
        return {"requests_at_most": self.shown.get(_REQUESTS)}

    def get_usage_data(self) -> list[Row]:
        """The resource classes that are used or limited."""
        if not api.is_newest(self.request):
            messages.info(
                self.request, "This Cyborg is older than usages and allocations; there are none."
            )
            return []
        found: list[Row] = self.ask(lambda cyborg: cyborg.call("GET", "/usages")["usages"], [])
        used = {row["resource_class"]: row for row in found}
        limited = {
            name.removeprefix(_CLASS): limit
            for name, limit in self.shown.items()
            if name.startswith(_CLASS)
        }
        none = {"in_use": 0, "hours": 0}
        return [
            {"limit": limited.get(name), "resource_class": name, **used.get(name, none)}
            for name in sorted({*used, *limited})
        ]

    def get_requests_data(self) -> list[Row]:
        """A page of requests; up to 2.3 administrators are shown those of all projects."""
        rows = self.rows(Requests, "accelerator_requests", {})
        return [row for row in rows if row["project_id"] == self.request.user.project_id]

    def get_allocations_data(self) -> list[Row]:
        """A page of allocations."""
        if not api.is_newest(self.request):
            return []
        query = {"project_id": self.request.user.project_id}
        rows = self.rows(Allocations, "allocations", query)
        return [row | {key: row["consumer"][key] for key in ("name", "type")} for row in rows]


urlpatterns = [urls.path("", OwnView.as_view(), name="index")]
