# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from cyborg.tests import hosts
from cyborg.tests.service import Site
from cyborg_dashboard.tests.conftest import Dashboard, headings, table

OVERVIEW = "/admin/accelerators/"


def test_hosts_and_classes_in_numbers(site: Site, dashboard: Dashboard) -> None:
    site.populate()
    page = dashboard.get(OVERVIEW)
    assert headings(page, "totals")[:4] == ["Resource class", "Total", "Used", "Free"]
    assert table(page, "totals") == [["FPGA", "4", "0", "4", "0", "0"]]
    assert table(page, "hosts") == [[hosts.ROOT, "FPGA", "4", "0", "4", "0", "0"]]


def test_many_hosts_have_pages(site: Site, dashboard: Dashboard) -> None:
    for number in range(3):
        name = f"h{number}"
        hosts.apply(hosts.device("a", hosts.deployable(f"{name}_a")), host=name)
    dashboard.browser.cookies["API_RESULT_PAGE_SIZE"] = "2"
    page = dashboard.get(OVERVIEW)
    assert [row[0] for row in table(page, "hosts")] == ["h0.example", "h1.example"]
    assert table(page, "totals")[0][1] == "12"
    assert "?hosts_after=h1.example+FPGA" in page
    page = dashboard.get(OVERVIEW, hosts_after="h1.example FPGA")
    assert [row[0] for row in table(page, "hosts")] == ["h2.example"]
