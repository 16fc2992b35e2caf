# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import requests

from cyborg.tests import hosts
from cyborg.tests.service import SERVER, USER_TOKEN, Site
from cyborg_dashboard.tests.conftest import Dashboard, table, told, words
from cyborg_dashboard.tests.identity import Identity

OWN = "/project/accelerators/"
PROFILES = "/project/accelerator_profiles/"
GROUPS = [{"resources:FPGA": "1"}]


def _as_member(site: Site, method: str, path: str, body: object) -> requests.Response:
    headers = {"X-Auth-Token": USER_TOKEN, "OpenStack-API-Version": "accelerator 2.4"}
    answer = requests.request(method, site.endpoint + path, json=body, headers=headers, timeout=60)
    assert answer.ok, answer.text
    return answer


def _member(dashboard: Dashboard) -> None:
    dashboard.sign_in(USER_TOKEN, "member", "reader")


def test_a_member_sees_the_own_requests_and_no_others(site: Site, dashboard: Dashboard) -> None:
    site.populate()
    site.call("POST", "/device_profiles", [{"name": "one", "groups": GROUPS}])
    site.call("POST", "/accelerator_requests", {"device_profile_name": "one"})
    made = _as_member(site, "POST", "/accelerator_requests", {"device_profile_name": "one"})
    _member(dashboard)
    page = dashboard.get(OWN)
    assert told(page) == []
    (row,) = table(page, "requests")
    assert row[:2] == [made.json()["arqs"][0]["uuid"], "Initial"]


def test_what_it_has_against_its_quota(
    site: Site, dashboard: Dashboard, identity: Identity
) -> None:
    site.start_with(hosts.card())
    site.call("POST", "/device_profiles", [{"name": "one", "groups": GROUPS}])
    consumer = {"uuid": SERVER, "type": "JOB", "name": "train"}
    body = {"consumer": consumer, "device_profile_name": "one"}
    _as_member(site, "POST", "/allocations", body)
    identity.limit("class:FPGA", 8, default=True)
    identity.limit("class:FPGA", 2)
    identity.limit("class:GPU", 0)
    identity.limit("accelerator_requests", 5)
    _member(dashboard)
    page = dashboard.get(OWN)
    assert "Requests at most 5" in words(page)
    assert [row[:3] for row in table(page, "usage")] == [["FPGA", "1", "2"], ["GPU", "0", "0"]]
    assert table(page, "allocations")[0][:2] == ["train", "JOB"]


def test_the_limits_of_other_projects_are_not_those_of_an_administrator(
    site: Site, dashboard: Dashboard, identity: Identity
) -> None:
    identity.limit("class:FPGA", 2)
    identity.limit("class:FPGA", 7, project="another")
    assert [row[:3] for row in table(dashboard.get(OWN), "usage")] == [["FPGA", "0", "2"]]


def test_a_profile_shows_what_a_flavor_needs(site: Site, dashboard: Dashboard) -> None:
    site.populate()
    site.call("POST", "/device_profiles", [{"name": "one", "groups": GROUPS}])
    _member(dashboard)
    (row,) = table(dashboard.get(PROFILES), "profiles")
    assert row == ["one", "-", "resources:FPGA = 1", "yes", "accel:device_profile=one"]


def test_no_keystone_is_a_sentence(site: Site, dashboard: Dashboard, identity: Identity) -> None:
    identity.known.clear()
    page = dashboard.get(OWN)
    assert told(page) == ["Error: no (HTTP 404)"]
