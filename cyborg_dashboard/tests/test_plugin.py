# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from cyborg.tests import hosts
from cyborg.tests.service import Site
from cyborg_dashboard.tests.conftest import Dashboard, told

HOSTILE = "</td><script>alert(1)</script>\u202egnp.exe" + "x" * 10240


def test_a_hostile_name_does_no_harm(site: Site, dashboard: Dashboard) -> None:
    hosts.apply(hosts.device("a", hosts.deployable("host-1_a"), model=HOSTILE[:200]))
    (device,) = site.call("GET", "/devices")["devices"]
    uuid = device["uuid"]
    dashboard.post(
        f"/admin/accelerator_devices/act/devices/disable/{uuid}/", reason=HOSTILE[:1000]
    )
    for path in ("", f"device/{uuid}/", f"act/hosts/drain/{HOSTILE[:99]}/", f"host/{HOSTILE}/"):
        page = dashboard.follow(f"/admin/accelerator_devices/{path}")
        assert "<script>alert(1)" not in page


def test_a_service_that_is_away_is_a_sentence(dashboard: Dashboard) -> None:
    dashboard.catalogue["accelerator"] = "http://127.0.0.1:9/v2"
    for path in ("/admin/accelerators/", "/admin/accelerator_devices/", "/project/accelerators/"):
        (sentence,) = told(dashboard.get(path))
        assert sentence.startswith("Error: The service cannot be asked: Unable to establish")


def test_without_the_service_there_are_no_panels(dashboard: Dashboard) -> None:
    del dashboard.catalogue["accelerator"]
    assert dashboard.browser.get("/project/accelerators/").status_code == 403
