# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib

import pytest
from oslo_config import cfg
from oslo_policy import opts

from cyborg.tests import hosts
from cyborg.tests.service import NAME, Site
from cyborg_dashboard.tests.conftest import Dashboard, choices, table, told

PROFILES = "/admin/accelerator_profiles/"
GROUP = {"class_1": "FPGA", "amount_1": "2", "traits_1": ["CUSTOM_FAKE_DEVICE"]}


def test_the_form_offers_what_the_cloud_has(site: Site, dashboard: Dashboard) -> None:
    site.start_with(hosts.card())
    page = dashboard.get(f"{PROFILES}create/")
    assert told(page) == []
    assert choices(page, "class_1") == ["", "FPGA"]
    assert "CUSTOM_FAKE_DEVICE" in choices(page, "traits_1")


def test_a_profile_is_made_and_shows_where_it_fits(site: Site, dashboard: Dashboard) -> None:
    site.start_with(hosts.card())
    fields = {"name": "two", "more_1": "accel:tolerate_taint=true", **GROUP}
    page = dashboard.post(f"{PROFILES}create/", **fields)
    assert told(page, "success") == ["Success: Created: two"]
    assert [row[:2] for row in table(page, "candidates")] == [[hosts.ROOT, "0"]]
    (profile,) = site.call("GET", "/device_profiles", version="2.4")["device_profiles"]
    assert profile["groups"] == [
        {
            "resources:FPGA": "2",
            "trait:CUSTOM_FAKE_DEVICE": "required",
            "accel:tolerate_taint": "true",
        }
    ]
    assert "Where It Fits" in dashboard.get(PROFILES)


def test_a_preview_makes_nothing(site: Site, dashboard: Dashboard) -> None:
    site.start_with(hosts.card())
    page = dashboard.post(f"{PROFILES}create/", name="two", preview="1", **GROUP)
    assert told(page, "info") == [f"Info: It fits now, first of all on {hosts.ROOT}."]
    many = GROUP | {"amount_1": "5"}
    page = dashboard.post(f"{PROFILES}create/", name="two", preview="1", **many)
    assert "room" in told(page, "warning")[0]
    assert site.call("GET", "/device_profiles")["device_profiles"] == []


@pytest.fixture
def no_candidates(conf: cfg.ConfigOpts, tmp_path: pathlib.Path) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text('"cyborg:device_profile:candidates": "!"')
    opts.set_defaults(conf)
    conf.set_override("policy_file", str(rules), group="oslo_policy")


def test_a_preview_names_no_host_to_those_who_may_not_know(
    no_candidates: None, site: Site, dashboard: Dashboard
) -> None:
    site.start_with(hosts.card())
    page = dashboard.post(f"{PROFILES}create/", name="two", preview="1", **GROUP)
    assert told(page, "info") == ["Info: It fits now."]
    assert told(page, "warning") == []


def test_a_refusal_keeps_what_was_written(site: Site, dashboard: Dashboard) -> None:
    site.start_with(hosts.card())
    page = dashboard.post(f"{PROFILES}create/", name="t w o", **GROUP)
    assert told(page)[0].startswith("Error: Device profile name must be of the form")
    assert 'value="t w o"' in page


def test_a_profile_is_disabled_enabled_and_deleted(site: Site, dashboard: Dashboard) -> None:
    site.populate()
    groups = [{"resources:FPGA": "1"}]
    uuid = site.call("POST", "/device_profiles", [{"name": "one", "groups": groups}])["uuid"]
    for name in ("disable", "enable", "delete"):
        assert f"/{name}/{uuid}/" in dashboard.get(PROFILES)
        dashboard.post(f"{PROFILES}act/device_profiles/{name}/{uuid}/")
    assert site.call("GET", "/device_profiles")["device_profiles"] == []


def test_a_pool_is_made_changed_and_deleted(site: Site, dashboard: Dashboard) -> None:
    pools = "/admin/accelerator_pools/"
    fields = {"name": "pool", "function_id": "aes", "free": "2", "max_devices": "3"}
    page = dashboard.post(f"{pools}create/", **fields)
    assert table(page, "pools")[0][:2] == ["pool", "aes"]
    (pool,) = site.call("GET", "/function_pools", version="2.4")["function_pools"]
    assert 'value="pool"' in dashboard.get(f"{pools}edit/{pool['uuid']}/")
    changed = fields | {"free": "1", "traits": "CUSTOM_A, CUSTOM_B"}
    dashboard.post(f"{pools}edit/{pool['uuid']}/", **changed)
    (pool,) = site.call("GET", "/function_pools", version="2.4")["function_pools"]
    assert (pool["free"], pool["traits"]) == (1, ["CUSTOM_A", "CUSTOM_B"])
    page = dashboard.post(f"{pools}create/", **fields)
    assert "pool" in told(page)[0]
    dashboard.post(f"{pools}act/function_pools/delete/{pool['uuid']}/")
    assert site.call("GET", "/function_pools", version="2.4")["function_pools"] == []


def test_a_deployable_is_programmed(site: Site, dashboard: Dashboard) -> None:
    site.populate()
    image = "22222222-2222-4222-8222-222222222222"
    site.load(image)
    (deployable,) = site.call("GET", "/deployables?name=" + NAME, version="2.4")["deployables"]
    place = f"/admin/accelerator_devices/program/{deployable['uuid']}/"
    device = dashboard.get(f"/admin/accelerator_devices/device/{deployable['device_uuid']}/")
    assert place in device
    answer = dashboard.browser.post(place, {"by": "function_id", "value": "aes"})
    answer = dashboard.browser.get(answer.headers["Location"])
    assert answer.headers["Refresh"] == "3"
    page = answer.content.decode()
    assert "has been asked for" in told(page, "success")[0]
    assert len(table(page, "events")) == 1
    page = dashboard.post(place, by="image_uuid", value="no uuid")
    assert "no uuid" in told(page)[0]
