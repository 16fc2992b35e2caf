# SPDX-License-Identifier: Apache-2.0
"""A Cyborg that serves 2.3 only: fewer columns and actions, and never an error page."""

from __future__ import annotations

import pytest

from cyborg.api import versions
from cyborg.tests import hosts
from cyborg.tests.service import Site
from cyborg_dashboard.tests.conftest import Dashboard, headings, table, told

DEVICES = "/admin/accelerator_devices/"


@pytest.fixture(autouse=True)
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "MAX", versions.DEVICE_STATUS)


def test_devices_have_fewer_columns_and_actions(site: Site, dashboard: Dashboard) -> None:
    site.populate()
    (device,) = site.call("GET", "/devices")["devices"]
    page = dashboard.get(DEVICES)
    assert headings(page, "devices") == ["Uuid", "Hostname", "Type", "Vendor", "Model", "Status"]
    assert "Disable" in page
    assert "/taint/" not in page
    act = f"{DEVICES}act/devices/disable/{device['uuid']}/"
    assert 'name="reason"' not in dashboard.get(act)
    page = dashboard.post(act)
    assert "maintaining" in page
    assert told(page) == []
    assert site.call("GET", "/devices", version="2.3")["devices"][0]["status"] == "maintaining"


def test_a_filter_that_it_lacks_is_a_sentence(site: Site, dashboard: Dashboard) -> None:
    site.populate()
    page = dashboard.post(DEVICES, devices__filter__q="healthy", devices__filter__q_field="health")
    assert told(page)[0].startswith("Error: This needs microversion 2.4 of the accelerator API")
    known = {"devices__filter__q": hosts.ROOT, "devices__filter__q_field": "hostname"}
    page = dashboard.post(DEVICES, **known)
    assert len(table(page, "devices")) == 1


def test_other_panels_say_what_it_lacks(site: Site, dashboard: Dashboard) -> None:
    site.populate()
    groups = [{"resources:FPGA": "1"}]
    site.call("POST", "/device_profiles", [{"name": "one", "groups": groups}])
    site.call("POST", "/accelerator_requests", {"device_profile_name": "one"})
    page = dashboard.get("/admin/accelerators/")
    assert "has no summary" in told(page, "info")[0]
    page = dashboard.follow(f"{DEVICES}host/{hosts.ROOT}/")
    assert "This needs microversion 2.4" in told(page)[0]
    page = dashboard.get("/admin/accelerator_profiles/")
    assert "/candidates/" not in page
    assert "/delete/" in page
    assert table(page, "profiles")[0][:2] == ["one", "resources:FPGA = 1"]
    page = dashboard.get("/project/accelerators/")
    assert table(page, "requests") == []
    assert "older than usages" in told(page, "info")[0]
    page = dashboard.get("/project/accelerator_profiles/")
    assert table(page, "profiles")[0][-1] == "accel:device_profile=one"
