# SPDX-License-Identifier: Apache-2.0
"""Profiles that fit no device any more, and flavors without a profile: wherever they are shown."""

from __future__ import annotations

import pathlib

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, profiles
from cyborg.conductor import gauges
from cyborg.db import models
from cyborg.tests import hosts
from cyborg.tests.mounted_api import Api
from cyborg.tests.status_command import Status

PATH = "/v2/device_profiles"
FPGA = {"resources:FPGA": "1"}
NOT_FAST = "groups[0] fits no device: none that offers FPGA has CUSTOM_FAST."
FAST = {**FPGA, "trait:CUSTOM_FAST": "required"}


@pytest.fixture
def status(tmp_path: pathlib.Path, database: sa.Engine, database_url: str) -> Status:
    return Status(tmp_path, database_url)


def make(name: str, *groups: dict[str, str]) -> None:
    profiles.create_profile(name=name, groups=list(groups or (FPGA,)), description=None)


def card(letter: str, numbers: range, *traits: str) -> None:
    part = hosts.deployable(f"host-{letter}_x", numbers, traits=("CUSTOM_FAKE_DEVICE", *traits))
    hosts.apply(hosts.device(letter, part), host=f"host-{letter}")


def fits(api: Api) -> dict[str, bool]:
    found = api.ask("GET", PATH, version="2.4").json["device_profiles"]
    assert all(each["fits"] == (not each["warnings"]) for each in found)
    for each in found:
        assert api.call("GET", f"{PATH}/{each['name']}") == each
    return {each["name"]: each["fits"] for each in found}


def warnings(api: Api, name: str) -> list[str]:
    found: list[str] = api.call("GET", f"{PATH}/{name}")["warnings"]
    return found


@pytest.mark.every_database
def test_a_driver_that_renames_a_trait(api: Api) -> None:
    make("any")
    make("fast", FPGA, FAST)
    make("slow", {**FPGA, "trait:CUSTOM_FAST": "forbidden"})
    make("gpu", {"resources:PGPU": "1"})
    make("many", {"resources:FPGA": "4"})
    card("a", range(4), "CUSTOM_FAST")
    card("b", range(4, 6))
    assert fits(api) == {"any": True, "fast": True, "slow": True, "gpu": False, "many": True}
    # The one that is fast says so in another word; the other has only two.
    card("a", range(3), "CUSTOM_RAPID")
    assert fits(api) == {"any": True, "fast": False, "slow": True, "gpu": False, "many": False}
    assert warnings(api, "fast") == [NOT_FAST.replace("[0]", "[1]")]
    assert warnings(api, "gpu") == ["groups[0] fits no device: none offers 1 PGPU."]
    assert warnings(api, "many") == ["groups[0] fits no device: none offers 4 FPGA."]
    card("b", range(4, 6), "CUSTOM_FAST")
    card("a", range(3), "CUSTOM_FAST")
    assert fits(api) == {"any": True, "fast": True, "slow": False, "gpu": False, "many": False}
    assert warnings(api, "slow") == [
        "groups[0] fits no device: none that offers FPGA is without CUSTOM_FAST."
    ]
    body = api.ask("GET", PATH, version="2.3").json["device_profiles"][0]
    assert not {"fits", "warnings"} & body.keys()


@pytest.mark.every_database
def test_very_many_traits_are_told_apart(api: Api) -> None:
    names = [f"CUSTOM_{number}" for number in range(130)]
    card("a", range(2), *names[::2])
    card("b", range(4, 6), *names[1::2])
    for first, second in ((0, 128), (0, 1), (60, 61), (62, 122), (129, 1)):
        groups = {f"trait:{names[number]}": "required" for number in (first, second)}
        make(f"{first}-{second}", FPGA | groups)
        make(f"not-{first}-{second}", FPGA | dict.fromkeys(groups, "forbidden"))
    for number in range(0, 130, 10):
        make(f"p{number}", FPGA | {f"trait:{names[number]}": "required"})
    found = fits(api)
    assert {name for name, fit in found.items() if not fit} == {
        "0-1", "60-61", "not-0-1", "not-60-61"
    }  # fmt: skip
    assert warnings(api, "0-1") == [
        "groups[0] fits no device: none that offers FPGA has CUSTOM_0 and has CUSTOM_1."
    ]


@pytest.mark.every_database
def test_an_administrators_trait_counts_once_and_a_lower_case_one_not(api: Api) -> None:
    card("a", range(2), "CUSTOM_FAST")
    with db.writer() as session:
        (of,) = session.scalars(sa.select(models.Deployable.id))
        for number, value in enumerate(("CUSTOM_FAST", "custom_slow")):
            session.add(
                models.Attribute(
                    deployable_id=of, key=f"traits9{number}", value=value, origin="admin"
                )
            )
    make("fast", FAST)
    make("both", {**FAST, "trait:CUSTOM_SLOW": "required"})
    make("none", {**FPGA, "trait:CUSTOM_SLOW": "required"})
    assert fits(api) == {"fast": True, "both": False, "none": False}


def test_what_a_program_brings_need_not_be_there_and_of_shares_is_warned(api: Api) -> None:
    card("a", range(2))
    wanted = {"accel:function_id": "f1", "trait:CUSTOM_FPGA_FUNCTION_ID_INTEL_F1": "required"}
    make("programmed", FPGA | wanted)
    make("asked-for", FPGA | {"trait:CUSTOM_FPGA_FUNCTION_ID_INTEL_F1": "required"})
    found = api.ask("GET", PATH, version="2.4").json["device_profiles"]
    fit = {each["name"]: each["fits"] for each in found}
    assert fit == {"programmed": True, "asked-for": False}
    # Shares isolate nothing.
    groups = [FPGA, {"resources:CUSTOM_GPU_SHARE": "2"}]
    made = api.call("POST", PATH, {"name": "s", "groups": groups})
    (warning,) = [each for each in made["warnings"] if "isolates" in each]
    assert warning.startswith("groups[1] asks for CUSTOM_GPU_SHARE: nothing isolates shares of a")


def test_a_page_costs_as_much_as_one_profile(api, count_sql) -> None:
    for number in range(40):
        make(f"p{number}", FPGA | {f"trait:CUSTOM_{number}": "required"})
    counts = []
    for limit in (1, 40):
        with count_sql() as counter:
            assert len(api.call("GET", f"{PATH}?limit={limit}")["device_profiles"]) == limit
        counts.append(len(counter.statements))
    assert counts == [3, 3]


def test_the_conductor_counts_them(conf: cfg.ConfigOpts, database: sa.Engine) -> None:
    make("any")
    make("fast", FAST)
    make("old", {"resources:PGPU": "1"})
    with db.writer() as session:
        db.update(session, models.DeviceProfile, models.DeviceProfile.name == "old", enabled=False)
    card("a", range(2))
    shown = {
        sample.labels["fits"]: sample.value
        for family in gauges.Gauges(conf).collect()
        for sample in family.samples
        if sample.name == "cyborg_device_profiles"
    }
    assert shown == {"yes": 1, "no": 1}


def test_check_says_so_of_profiles_and_flavors(status, sink, database) -> None:
    make("any")
    make("fast", FAST)
    card("a", range(2))
    with db.writer() as session:
        db.delete(session, models.Work)
    sink.flavors = {
        "plain": {},
        "good": {"accel:device_profile": "any"},
        "m1.fpga": {"accel:device_profile": "gone"},
        "other": {"hw:x": "y"},
        "last": {"accel:device_profile": "lost"},
    }
    status.set("nova", "auth_type = none", f"endpoint_override = {sink.url}")
    code, found = status.json("check", "--format", "json", "--settle", "0")
    # A profile may be made before its devices are there: that is not wrong.
    assert (code, found["findings"]) == (0, [])
    assert found["notes"] == [
        f"Device profile fast: {NOT_FAST}",
        "Flavor m1.fpga names device profile gone, which is disabled or absent.",
        "Flavor last names device profile lost, which is disabled or absent.",
    ]
    sink.status = 403
    code, found = status.json("check", "--format", "json", "--settle", "0")
    assert (code, found["fault"]) == (0, None)
    assert found["notes"][1:] == [
        "Flavors are not looked at: Nova answered 403 to GET /flavors/detail."
    ]
