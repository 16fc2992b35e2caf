# SPDX-License-Identifier: Apache-2.0
"""The commands that this service adds to ``openstack accelerator``, against the API over HTTP.

Here: what they are to those of python-cyborgclient, and what inventory and profiles have.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import types
from typing import Any

import pytest
from oslo_config import cfg

from cyborg.api import versions
from cyborg.drivers import base, pci
from cyborg.osc import api as osc_api
from cyborg.tests import hosts
from cyborg.tests.openstack_command import OpenStack, rows
from cyborg.tests.service import NAME, Site

pytestmark = pytest.mark.usefixtures("quiet_openstack")

GROUPS = [{"resources:FPGA": "2", "trait:CUSTOM_FAKE_DEVICE": "required"}]
UNKNOWN = "11111111-2222-3333-4444-555555555555"


def test_they_know_the_newest_microversion() -> None:
    assert str(versions.MAX) == osc_api.NEWEST


def test_they_take_no_command_away() -> None:
    def names(group: str) -> set[str]:
        found = importlib.metadata.entry_points(group=group)
        return {entry.name for entry in found}

    of_others = names("openstack.accelerator.v2")
    replaced = {
        "arq": "bind create delete list show unbind",
        "deployable": "list program show",
        "device": "disable enable list show",
        "device_attribute": "create delete list show",
        "device_profile": "create delete list show",
    }
    assert of_others == {
        f"accelerator_{kind}_{act}" for kind, acts in replaced.items() for act in acts.split()
    }
    assert of_others <= names("openstack.cyborg.v2")


def test_they_take_the_options_of_what_they_replace() -> None:
    def options(entry: importlib.metadata.EntryPoint) -> set[str]:
        app = types.SimpleNamespace(client_manager=None)
        parser = entry.load()(app, None).get_parser("openstack")
        return set(parser._option_string_actions)

    ours = importlib.metadata.entry_points(group="openstack.cyborg.v2")
    for old in importlib.metadata.entry_points(group="openstack.accelerator.v2"):
        assert options(old) - options(ours[old.name]) == set(), old


@pytest.mark.parametrize("version", [None, "2.3"])
def test_what_they_replace_has_the_columns_of_before(site: Site, version: str | None) -> None:
    hosts.apply(hosts.device("a", hosts.deployable(NAME), std_board_info="{}"))
    after = OpenStack(endpoint=site.endpoint, version=version)
    before = OpenStack(
        endpoint=site.endpoint, version=version, ignored=("cyborgclient.osc.v2", "cyborg.osc")
    )
    text = json.dumps(GROUPS)
    site.call("POST", "/device_profiles", [{"name": "old", "groups": GROUPS}])
    arqs = site.call("POST", "/accelerator_requests", {"device_profile_name": "old"})["arqs"]
    (device,) = before("device", "list")
    (deployable,) = before("deployable", "list")
    (profile,) = before("device", "profile", "list")
    for words in (
        ["device", "list"],
        ["device", "list", "--long"],
        ["device", "show", device["uuid"]],
        ["deployable", "list"],
        ["deployable", "list", "--long"],
        ["deployable", "show", deployable["uuid"]],
        ["device", "attribute", "list"],
        ["device", "profile", "list"],
        ["device", "profile", "list", "--long"],
        ["device", "profile", "show", profile["uuid"]],
        ["arq", "list"],
        ["arq", "list", "--long"],
        ["arq", "show", arqs[0]["uuid"]],
    ):
        old, new = before(*words), after(*words)
        pairs = zip(old, new, strict=True) if isinstance(old, list) else [(old, new)]
        for was, now in pairs:
            kept = {name: value for name, value in now.items() if name in was}
            assert {**was, **_settled(kept, was)} == kept, words
    made = after("device", "profile", "create", "new", text, "--description", "d")
    assert (made["name"], made["groups"], made["description"]) == ("new", GROUPS, "d")
    number = str(deployable["device_id"])
    assert after("device", "attribute", "create", number, "rack", "12")["key"] == "rack"


def _settled(now: dict[str, Any], was: dict[str, Any]) -> dict[str, Any]:
    """What newer microversions say that older ones do not: a status, and time as time."""
    return {name: now[name] for name in ("status", "created_at", "updated_at") if name in was}


def test_a_microversion_that_is_too_old(site: Site) -> None:
    old = OpenStack(endpoint=site.endpoint, version="2.3")
    for words in (
        ("service", "list"),
        ("device", "list", "--health", "healthy"),
        ("deployable", "program", UNKNOWN, "--function-id", "aes"),
        ("deployable", "program", UNKNOWN, "--layout", "dc"),
        ("function", "pool", "show", "pool"),
        ("operation", "cancel", UNKNOWN),
        ("history", "list"),
        ("device", "set", "--disable", "--reason", "text", UNKNOWN),
        ("host", "show", "host-1"),
        ("usage", "list"),
        ("attach", "handle", "list"),
    ):
        complaint = old.refused(*words)
        assert "This needs microversion 2.4 of the accelerator API" in complaint
        assert "2.3 is used" in complaint


def test_lists_go_on_over_pages(site: Site, osc: OpenStack, conf: cfg.ConfigOpts) -> None:
    hosts.apply(*(hosts.card(letter) for letter in "abcde"))
    conf.set_override("max_limit", 2, group="api")
    found = rows(osc("device", "list"), "uuid")
    assert len(set(found)) == 5
    assert rows(osc("device", "list", "--limit", "3"), "uuid") == found[:3]
    assert rows(osc("device", "list", "--marker", found[2][0]), "uuid") == found[3:]


def test_devices(site: Site, osc: OpenStack) -> None:
    place = base.ControlPath(cpid_type="PCI", cpid_info=pci.split("0000:0c:00.0"))
    hosts.apply(
        hosts.device("a", hosts.deployable(NAME), control_path=place),
        hosts.device("b", hosts.deployable("host-1_b"), type="GPU", unhealthy="It is on fire."),
        readings={"b": {"temperature_celsius": 1100.5, "power_watts": 300}},
    )
    healthy, ill = osc("device", "list")
    assert rows([healthy, ill], "type", "address", "status", "health") == [
        ("FPGA", "0000:0c:00.0", "enabled", "healthy"),
        ("GPU", "b", "enabled", "unhealthy"),
    ]
    assert osc("device", "list", "--health", "unhealthy") == [ill]
    assert osc("device", "list", "--type", "FPGA", "--no-missing") == [healthy]
    assert osc("device", "list", "--missing") == []
    assert osc("device", "show", "host-1_b")["health_reason"] == "It is on fire."
    shown = osc.run("device", "show", "host-1_b").out
    assert "temperature_celsius = 1100.5" in shown
    assert "power_watts = 300" in shown

    osc.do("device", "set", "--disable", NAME, ill["uuid"])
    assert rows(osc("device", "list"), "status") == [("maintaining",), ("maintaining",)]
    osc.do("device", "set", "--enable", NAME)
    osc.do("device", "disable", NAME)
    assert osc("device", "show", NAME)["status"] == "maintaining"
    osc.do("device", "enable", NAME)
    assert osc("device", "show", healthy["uuid"])["status"] == "enabled"
    assert f"Device not found with uuid={UNKNOWN}" in osc.refused(
        "device", "set", "--disable", UNKNOWN
    )

    assert "HTTP 409" in osc.refused("device", "delete", healthy["uuid"])
    hosts.apply(hosts.device("b", hosts.deployable("host-1_b")))
    assert osc("device", "list", "--missing") == []
    assert len(osc("device", "list")) == 1


def test_attributes(site: Site, osc: OpenStack) -> None:
    site.populate()
    made = osc("device", "attribute", "create", NAME, "rack", "12")
    assert osc("device", "attribute", "list", "--deployable", NAME, "--key", "rack") == [
        {name: made[name] for name in ("uuid", "deployable_id", "key", "value")}
        | {name: made[name] for name in ("deployable_uuid", "created_at", "updated_at")}
    ]
    assert osc("device", "attribute", "show", made["uuid"])["value"] == "12"
    told = osc.refused("device", "attribute", "create", "x", "rack", "12")
    assert "No deployable is called" in told
    assert osc("deployable", "show", NAME)["attributes"]["rack"] == "12"
    hosts.apply(hosts.device("a", hosts.deployable(NAME)), hosts.card("b"))
    made = osc("device", "attribute", "create", NAME, "room", "3", "--also", "host-1_b")
    assert len(set(made["deployable_uuid"])) == len(made["uuid"]) == 2
    osc.do("device", "attribute", "delete", *made["uuid"])
    assert osc("device", "attribute", "list", "--key", "room") == []
    assert "not found" in osc.refused("device", "attribute", "show", made["uuid"][0])


def test_profiles(site: Site, osc: OpenStack) -> None:
    project = "5b1b1b1b1b1b4c1b8b1b1b1b1b1b1b1b"
    other = "6b1b1b1b1b1b4c1b8b1b1b1b1b1b1b1b"
    text = json.dumps(GROUPS)
    made = osc("device", "profile", "create", "one", text, "--private", "--project", project)
    assert (made["visibility"], made["projects"]) == ("private", [project])
    assert osc("device", "profile", "list", "--visibility", "public") == []
    assert osc("device", "profile", "show", "one")["uuid"] == made["uuid"]
    one = ("device", "profile", "set", "one")

    changed = osc(*one, "--description", "the first", "--project", other)
    assert (changed["description"], changed["projects"]) == ("the first", [project, other])
    changed = osc("device", "profile", "unset", "one", "--description", "--project", project)
    assert (changed["description"], changed["projects"]) == (None, [other])
    assert "is not shared" in osc.refused("device", "profile", "unset", "one", "--project", project)
    changed = osc(*one, "--public", "--name", "two", "--groups", '[{"resources:GPU": "1"}]')
    assert (changed["name"], changed["projects"]) == ("two", [])
    assert changed["groups"] == [{"resources:GPU": "1"}]
    assert changed["uuid"] == made["uuid"]
    for wrong in (["this is no JSON"], ["--group", "no equals sign"], []):
        with pytest.raises(SystemExit):
            osc.run("device", "profile", "create", "three", *wrong)
    group = ("--group", "resources:FPGA=1,trait:CUSTOM_A=required")
    made = osc("device", "profile", "create", "three", *group, "--group", "resources:GPU=2")
    first = {"resources:FPGA": "1", "trait:CUSTOM_A": "required"}
    assert made["groups"] == [first, {"resources:GPU": "2"}]
    assert osc("device", "profile", "set", "three", *group)["groups"] == [first]
    assert "found" in osc.refused("device", "profile", "show", "one")

    three = ("device", "profile", "set", "three")
    changed = osc(*three, "--disable", "--extra", "owner=ml", "--extra", "class=b=c")
    assert (changed["enabled"], changed["extra"]) == (False, {"owner": "ml", "class": "b=c"})
    assert rows(osc("device", "profile", "list", "--enabled", "false"), "name") == [("three",)]
    changed = osc("device", "profile", "unset", "three", "--extra", "owner")
    assert (changed["extra"], changed["in_use"]) == ({"class": "b=c"}, 0)
    assert osc(*three, "--enable")["enabled"]

    assert "nothing" in osc.refused("device", "profile", "delete", "nothing", "two")
    osc.do("device", "profile", "delete", made["uuid"])
    assert osc("device", "profile", "list") == []


def test_candidates(site: Site, osc: OpenStack) -> None:
    site.start()
    osc("device", "profile", "create", "fpga", '[{"resources:FPGA": "1"}]')
    (candidate,) = osc("device", "profile", "candidates", "fpga", "--limit", "1")
    assert (candidate["hostname"], candidate["group"]) == (hosts.ROOT, 0)
    assert (candidate["deployable_name"], candidate["preferred"]) == (NAME, None)
    header = osc.run("device", "profile", "candidates", "fpga").out.splitlines()[1]
    assert re.findall(r"\w+", header) == ["hostname", "deployable_name", "reprogram"]
    preferring = "resources:FPGA=1,accel:preferred_function=aes"
    osc("device", "profile", "create", "aes", "--group", preferring)
    header = osc.run("device", "profile", "candidates", "aes").out.splitlines()[1]
    assert "preferred" in header
