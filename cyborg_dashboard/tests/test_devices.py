# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from cyborg.tests import hosts
from cyborg.tests.service import MANAGER_TOKEN, USER_TOKEN, Site
from cyborg_dashboard.tests.conftest import Dashboard, headings, table, told, words

DEVICES = "/admin/accelerator_devices/"


def _act(collection: str, name: str, key: str) -> str:
    return f"{DEVICES}act/{collection}/{name}/{key}/"


def test_the_list_has_what_the_command_shows(site: Site, dashboard: Dashboard) -> None:
    site.populate()
    (device,) = site.call("GET", "/devices", version="2.4")["devices"]
    page = dashboard.get(DEVICES)
    (row,) = table(page, "devices")
    assert headings(page, "devices")[:4] == ["Uuid", "Hostname", "Address", "Type"]
    assert row[:3] == [device["uuid"], hosts.ROOT, device["address"]]
    assert "Disable" in row[-1]
    assert "Enable" not in row[-1]


def test_pages_lead_forth_and_back(site: Site, dashboard: Dashboard) -> None:
    hosts.apply(*(hosts.card(letter) for letter in "abcde"))
    uuids = [each["uuid"] for each in site.call("GET", "/devices")["devices"]]
    dashboard.browser.cookies["API_RESULT_PAGE_SIZE"] = "2"

    def shown(**query: str) -> list[str]:
        return [row[0] for row in table(dashboard.get(DEVICES, **query), "devices")]

    assert shown() == uuids[:2]
    assert shown(devices_after=uuids[1]) == uuids[2:4]
    assert shown(devices_before=uuids[2]) == uuids[:2]
    page = dashboard.get(DEVICES, devices_after=uuids[1])
    assert f"?devices_after={uuids[3]}" in page
    assert f"?devices_before={uuids[2]}" in page


def test_a_filter_is_sent_to_the_api(site: Site, dashboard: Dashboard) -> None:
    hosts.apply(*(hosts.card(letter) for letter in "ab"))
    page = dashboard.post(
        DEVICES, devices__filter__q="host-2", devices__filter__q_field="hostname"
    )
    assert table(page, "devices") == []
    page = dashboard.post(DEVICES, devices__filter__q="red", devices__filter__q_field="health")
    assert "health must be one of" in told(page)[0]


def test_a_device_is_disabled_with_a_reason_and_enabled(site: Site, dashboard: Dashboard) -> None:
    site.populate()
    (device,) = site.call("GET", "/devices")["devices"]
    uuid = device["uuid"]
    assert 'name="reason"' in dashboard.get(_act("devices", "disable", uuid))
    page = dashboard.post(_act("devices", "disable", uuid), reason="its fan is loud")
    assert told(page, "success") == [f"Success: Disable: {uuid}"]
    assert "its fan is loud" in words(page)
    assert 'name="reason"' not in dashboard.get(_act("devices", "enable", uuid))
    dashboard.post(_act("devices", "enable", uuid))
    dashboard.post(_act("devices", "taint", uuid), reason="new")
    shown = site.call("GET", f"/devices/{uuid}", version="2.4")
    assert (shown["status"], shown["taint_reason"]) == ("enabled", "new")


def test_a_device_has_a_page_with_its_parts(site: Site, dashboard: Dashboard) -> None:
    site.populate()
    (device,) = site.call("GET", "/devices")["devices"]
    page = dashboard.get(f"{DEVICES}device/{device['uuid']}/")
    assert [row[0] for row in table(page, "deployables")] == ["host-1_FakeDevice"]
    assert "/program/" not in page
    assert len(table(page, "handles")) == 4
    assert "free" in table(page, "handles")[0]


def test_a_host_is_drained_with_a_reason(site: Site, dashboard: Dashboard) -> None:
    site.populate()
    page = dashboard.post(_act("hosts", "drain", "host-1"), reason="a new kernel")
    assert "a new kernel" in words(page)
    assert "Undrain" in page
    assert site.call("GET", "/hosts/host-1", version="2.4")["drained"] is True


def test_a_refusal_is_its_sentence(site: Site, dashboard: Dashboard) -> None:
    unknown = "11111111-2222-3333-4444-555555555555"
    page = dashboard.follow(f"{DEVICES}device/{unknown}/")
    assert told(page) == [f"Error: Device not found with uuid={unknown}"]
    page = dashboard.follow(f"{DEVICES}host/nowhere/")
    assert told(page) == ["Error: Host not found with name=nowhere"]
    page = dashboard.post(_act("devices", "disable", unknown), reason="gone")
    assert told(page) == [f"Error: Device not found with uuid={unknown}"]
    assert "gone" in page
    assert dashboard.browser.get(_act("devices", "burn", unknown)).status_code == 404


@pytest.mark.parametrize("path", [DEVICES, "/admin/accelerators/"])
def test_a_member_sees_no_hardware(site: Site, dashboard: Dashboard, path: str) -> None:
    dashboard.sign_in(USER_TOKEN, "member", "reader")
    assert dashboard.browser.get(path).status_code == 403


def test_what_the_policy_forbids_is_not_shown(site: Site, dashboard: Dashboard) -> None:
    site.populate()
    (device,) = site.call("GET", "/devices")["devices"]
    dashboard.sign_in(MANAGER_TOKEN, "manager", "member", "reader")
    page = dashboard.get(f"{DEVICES}device/{device['uuid']}/")
    assert device["uuid"] in words(page)
    assert "/disable/" not in page
    (deployable,) = site.call("GET", "/deployables")["deployables"]
    program = f"{DEVICES}program/{deployable['uuid']}/"
    for path in (_act("devices", "disable", device["uuid"]), program):
        assert dashboard.browser.get(path).status_code == 403
    dashboard.sign_in("admin", "admin")
    assert "/disable/" in dashboard.get(f"{DEVICES}device/{device['uuid']}/")
