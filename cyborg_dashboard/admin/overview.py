# SPDX-License-Identifier: Apache-2.0
"""Admin, Accelerators, Overview: how many accelerators there are, and how many are free."""

from __future__ import annotations

from typing import Any

from django import urls
from horizon import messages

from cyborg_dashboard import api, pages
from cyborg_dashboard.api import Row
from cyborg_dashboard.tables import Table, column


class _Classes(Table):
    resource_class = column("resource_class")
    total = column("total")
    used = column("used")
    free = column("free")
    preparing = column("preparing", verbose_name="Being cleaned or programmed")
    out_of_service = column("out_of_service")

    def get_object_id(self, row: Row) -> str:
        """Its resource class."""
        return str(row["resource_class"])


class Totals(_Classes):
    """The accelerators of each resource class on all hosts."""

    class Meta:
        """Options."""

        name = "totals"
        verbose_name = "All hosts"
        hidden_title = False


class Hosts(_Classes):
    """The accelerators of each resource class on each host."""

    hostname = column(
        "hostname",
        link=lambda row: urls.reverse(
            "horizon:admin:accelerator_devices:host", args=(row["hostname"],)
        ),
    )

    class Meta:
        """Options."""

        name = "hosts"
        verbose_name = "Hosts"
        hidden_title = False
        columns = (
            *("hostname", "resource_class", "total", "used", "free"),
            *("preparing", "out_of_service"),
        )

    def get_object_id(self, row: Row) -> str:
        """Its host and resource class, which the API takes as the marker of a page."""
        return f"{row['hostname']} {row['resource_class']}"


class OverviewView(pages.PageView):
    """Both."""

    page_title = "Accelerators"
    table_classes = (Totals, Hosts)

    def thing(self, cyborg: api.Cyborg) -> Row:
        """The summary."""
        if not cyborg.is_newest:
            messages.info(
                self.request,
                f"This Cyborg serves microversion {cyborg.microversion}, which has no summary. "
                "The panel Devices shows what there is.",
            )
            return {"summary": [], "totals": []}
        marker = self.request.GET.get("marker")
        limit = api.page_size(self.request)
        found: Row = cyborg.call("GET", "/summary", query={"marker": marker, "limit": limit})
        return found

    def facts(self) -> dict[str, Any]:
        """None beside the tables."""
        return {}

    def get_totals_data(self) -> list[Row]:
        """All hosts together."""
        return list(self.shown.get("totals", ()))

    def get_hosts_data(self) -> list[Row]:
        """A page of the rest."""
        rows = list(self.shown.get("summary", ()))
        self.more["hosts"] = api.Page(rows, has_after="summary_links" in self.shown)
        return rows


urlpatterns = [urls.path("", OverviewView.as_view(), name="index")]
