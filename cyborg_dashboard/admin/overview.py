# SPDX-License-Identifier: Apache-2.0
"""Admin, Accelerators, Overview: how many accelerators there are, and how many are free."""

from __future__ import annotations

from typing import Any

from django import urls
from horizon import messages

from cyborg_dashboard import api, pages
from cyborg_dashboard.api import Row
from cyborg_dashboard.tables import host_url, table

_NUMBERS = ("resource_class", "total", "used", "free", "preparing", "out_of_service")
_HEADINGS = {"preparing": "Being cleaned or programmed"}
_TOTALS = table("totals", "All hosts", *_NUMBERS, key=_NUMBERS[:1], headings=_HEADINGS)
# The API takes what names a row as the marker of a page, too.
_HOSTS = table(
    *("hosts", "Hosts", "hostname", *_NUMBERS),
    key=("hostname", "resource_class"), links={"hostname": host_url}, headings=_HEADINGS,
)


class OverviewView(pages.PageView):
    """Both."""

    page_title = "Accelerators"
    table_classes = (_TOTALS, _HOSTS)

    def thing(self, cyborg: api.Cyborg) -> Row:
        """The summary."""
        if not cyborg.is_newest:
            messages.info(
                self.request,
                f"This Cyborg serves microversion {cyborg.microversion}, which has no summary. "
                "The panel Devices shows what there is.",
            )
            return {"summary": [], "totals": []}
        given, limit = self.request.GET.get("hosts_after"), api.page_size(self.request)
        found: Row = cyborg.call("GET", "/summary", query={"marker": given, "limit": limit})
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
