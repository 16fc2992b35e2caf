# SPDX-License-Identifier: Apache-2.0
"""Project, Accelerators, Own Accelerators: requests, allocations, and usage against quota."""

from __future__ import annotations

from typing import Any

from django import urls
from horizon import messages

from cyborg_dashboard import api, pages
from cyborg_dashboard.api import Row
from cyborg_dashboard.tables import table

#: How Keystone's limits of resource classes are named, and that of all requests.
_CLASS, _ALL = "class:", "accelerator_requests"


_USAGE = table(
    *("usage", "Usage", "resource_class", "in_use", "limit", "hours"),
    key=("resource_class",), headings={"hours": "Hours used so far"},
)
_REQUESTS = table(
    *("requests", "Accelerator requests", "uuid", "state", "state_reason", "device_profile_name"),
    *("attach_handle_info", "health", "instance_uuid"),
)
_ALLOCATIONS = table(
    *("allocations", "Allocations", "name", "type", "state", "state_reason", "hosts"),
    *("lease_ends_at", "uuid"),
)


class OwnView(pages.PageView):
    """All of it."""

    page_title = "Accelerators of the Project"
    table_classes = (_USAGE, _REQUESTS, _ALLOCATIONS)

    def thing(self, _cyborg: api.Cyborg) -> Row:
        """The limits of the project by name, as Keystone has them."""
        services, region = self.request.user.service_catalog, self.request.user.services_region
        uuid = next(each["id"] for each in services if each["type"] == "accelerator")
        limits: Row = {}
        asked = f"service_id={uuid}"
        # Keystone shows an administrator the limits of all projects.
        own = f"{asked}&project_id={self.request.user.project_id}"
        for kind, query, key in (
            ("registered_limits", asked, "default_limit"), ("limits", own, "resource_limit")
        ):
            for row in api.look_up(self.request, "identity", f"/v3/{kind}?{query}")[kind]:
                if row["region_id"] in (None, region):
                    limits[row["resource_name"]] = row[key]
        return limits

    def facts(self) -> dict[str, Any]:
        """The limit that is no resource class's."""
        return {"requests_at_most": self.shown.get(_ALL)}

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
        rows = self.rows(_REQUESTS, "accelerator_requests", {})
        return [row for row in rows if row["project_id"] == self.request.user.project_id]

    def get_allocations_data(self) -> list[Row]:
        """A page of allocations."""
        if not api.is_newest(self.request):
            return []
        query = {"project_id": self.request.user.project_id}
        rows = self.rows(_ALLOCATIONS, "allocations", query)
        return [row | {key: row["consumer"][key] for key in ("name", "type")} for row in rows]


urlpatterns = [urls.path("", OwnView.as_view(), name="index")]
