# SPDX-License-Identifier: Apache-2.0
"""Candidates of a device profile, in the order that it prefers, over HTTP with a real Placement."""

from __future__ import annotations

from typing import Any

import pytest
import webob

from cyborg import profiles
from cyborg.db import models
from cyborg.drivers import base
from cyborg.handles import release
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.programming import program
from cyborg.tests import boots, engine, hosts
from cyborg.tests.service import Site

AES, ZIP = "aaaa-1", "zzzz-2"
FPGA = {"resources:FPGA": "1"}
PATH = "/device_profiles/p/candidates"
CARDS = ("idle", "zip", "aes", "fixed", "renamed")


@pytest.fixture
def rack(site: Site) -> Site:
    """A host whose cards run nothing, two functions and one of them with a trait more."""
    cards: dict[str, dict[str, Any]] = {
        "idle": {"function": ""},
        "zip": {"function": ZIP},
        "aes": {"function": AES, "traits": ("CUSTOM_FAKE_DEVICE", "CUSTOM_FAST")},
        "fixed": {"program_mode": None, "traits": ("CUSTOM_FAKE_DEVICE", "CUSTOM_FIXED")},
    }
    devices = []
    for number, (name, fields) in enumerate(cards.items()):
        numbers = range(8 * number, 8 * number + 2)
        known: dict[str, Any] = {"program_mode": "dynamic", **fields}
        devices.append(hosts.device(name, hosts.deployable(f"host-1_{name}", numbers, **known)))
    site.placement.make_provider(hosts.ROOT)
    hosts.apply(*devices)
    site.placement.sync()
    return site


def profile(site: Site, *groups: dict[str, str]) -> None:
    body = [{"name": "p", "groups": [FPGA | group for group in groups]}]
    site.call("POST", "/device_profiles", body)


def change(site: Site, *groups: dict[str, str]) -> None:
    """Give the profile other groups."""
    body = {"name": "p", "groups": [FPGA | group for group in groups]}
    site.call("PUT", "/device_profiles/p", body, "2.4")


def candidates(site: Site, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.call("GET", PATH + query, version="2.4")["candidates"]
    return found


def cards(site: Site, query: str = "") -> list[str]:
    """The cards of the candidates, each with how often it would be programmed where it would."""
    names = {provider_uuid(f"host-1_{name}"): name for name in CARDS}
    return [
        "+".join(names[group["rp_uuid"]] for group in candidate["groups"])
        + (f" {candidate['reprogrammings']}" if candidate["reprogrammings"] else "")
        for candidate in candidates(site, query)
    ]


def test_what_is_preferred_comes_first_and_keeps_nothing_away(rack: Site) -> None:
    profile(rack, {"accel:preferred_function": "AAAA1"})
    found = cards(rack)
    assert found[0] == "aes"
    assert sorted(found) == ["aes", "fixed", "idle", "zip"]
    # Those that are equally good have the same rank.
    assert [candidate["rank"] for candidate in candidates(rack)] == [0, 1, 1, 1]
    preferred = [candidate["groups"][0]["preferred"] for candidate in candidates(rack)]
    assert preferred == [True, False, False, False]
    assert cards(rack, "?limit=1") == ["aes"]
    change(rack, {"accel:preferred_trait": "CUSTOM_FIXED, CUSTOM_NOBODY_HAS_IT"})
    assert cards(rack)[0] == "fixed"
    change(rack, {"trait:CUSTOM_NEVER_HEARD_OF": "required"})
    assert cards(rack) == []


def test_what_must_be_programmed_comes_after_what_runs_it(rack: Site) -> None:
    profile(rack, {"accel:function_id": ZIP, "accel:preferred_trait": "CUSTOM_FAKE_DEVICE"})
    # What cannot be programmed and does not run it could not be bound.
    assert cards(rack)[0] == "zip"
    assert sorted(cards(rack)) == ["aes 1", "idle 1", "zip"]


def test_groups_are_served_together(rack: Site) -> None:
    profile(rack, {"accel:function_id": ZIP}, {"accel:function_id": AES})
    found = cards(rack)
    assert found[0] == "zip+aes"
    # No card can run both.
    assert sorted(found) == sorted(
        ["zip+aes", "zip+idle 1", "idle+aes 1", "aes+zip 2", "aes+idle 2", "idle+zip 2"]
    )
    change(rack, {"trait:CUSTOM_FAST": "forbidden", "trait:CUSTOM_FAKE_DEVICE": "required"})
    assert sorted(cards(rack)) == ["fixed", "idle", "zip"]
    # One request does not use what another has programmed, not of one instance either.
    change(rack, {"accel:function_id": ZIP}, {})
    found = cards(rack)
    assert {"zip+zip", "aes+idle 1"} <= set(found)
    assert {"aes+aes 1", "idle+idle 1"}.isdisjoint(found)


def test_a_standard_trait_chooses(site: Site) -> None:
    traits = {"trusted": ("HW_NIC_SRIOV", "HW_NIC_SRIOV_TRUSTED"), "other": ("HW_NIC_SRIOV",)}
    site.placement.make_provider(hosts.ROOT)
    hosts.apply(
        *(
            hosts.device(name, hosts.deployable(f"host-1_{name}", (number,), traits=has))
            for number, (name, has) in enumerate(traits.items())
        )
    )
    site.placement.sync()
    body = {"name": "p", "groups": [FPGA | {"trait:HW_NIC_SRIOV_TRUSTED": "required"}]}
    site.call("POST", "/device_profiles", body, "2.4")

    (found,) = candidates(site)

    assert found["groups"][0]["rp_uuid"] == provider_uuid("host-1_trusted")


def test_a_candidate_can_be_bound(rack: Site, ctx: context.RequestContext) -> None:
    profile(rack, {"accel:preferred_function": AES})
    created = rack.call("POST", "/accelerator_requests", {"device_profile_name": "p"})
    (uuid,) = (arq["uuid"] for arq in created["arqs"])
    best = candidates(rack)[0]
    where = {"hostname": best["hostname"], "device_rp_uuid": best["groups"][0]["rp_uuid"]}
    boots.bind(ctx, [uuid], models.new_uuid(), **where)
    engine.drain(rack.conf)
    assert rack.call("GET", f"/accelerator_requests/{uuid}")["state"] == "Bound"
    assert rack.call("GET", "/operations", version="2.4")["operations"] == []


def test_without_placement_it_is_refused(rack: Site) -> None:
    profile(rack, {})
    rack.placement.before = lambda _method, _path: webob.Response(status=500)
    assert rack.ask("GET", PATH, version="2.4").status_code == 503
    rack.placement.obey()
    assert rack.ask("GET", PATH, version="2.3").status_code == 404
    assert rack.ask("GET", f"{PATH}?limit=0", version="2.4").status_code == 400
    missing = rack.ask("GET", "/device_profiles/gone/candidates", version="2.4")
    assert missing.status_code == 404
    rack.conf.clear_override("auth_type", group="placement")
    assert rack.ask("GET", PATH, version="2.4").status_code == 501


def test_one_request_and_four_selects_and_one_more_for_what_would_be_programmed(
    rack, ctx, count_sql
) -> None:
    def selects(most: int) -> int:
        candidates(rack)
        rack.placement.calls.clear()
        with count_sql() as counter:
            assert len(candidates(rack)) > most
        assert rack.placement.calls == ["GET /allocation_candidates"]
        return len(counter.statements)

    profile(rack, {"trait:CUSTOM_FAKE_DEVICE": "required"}, {})
    assert selects(4) == 4
    change(rack, {"accel:function_id": ZIP}, {"accel:function_id": ZIP})
    use(rack, ctx, "aes")
    assert selects(2) == 5


def use(rack: Site, ctx: context.RequestContext, card: str, *, bound: bool = True) -> str:
    """Have a guest on a card, with whatever that runs, or have it asked for; its ARQ."""
    (uuid,) = boots.arqs(ctx, 1, FPGA)
    boots.bind(ctx, [uuid], models.new_uuid(), device_rp_uuid=provider_uuid(f"host-1_{card}"))
    if bound:
        engine.drain(rack.conf)
    assert boots.states(ctx)[uuid] == ("Bound" if bound else "BindStarted")
    return uuid


@pytest.mark.every_database
@pytest.mark.parametrize("bound", [True, False])
def test_what_somebody_has_is_not_programmed(rack, ctx, *, bound) -> None:
    profile(rack, {"accel:function_id": ZIP})
    use(rack, ctx, "aes", bound=bound)
    assert sorted(cards(rack)) == ["idle 1", "zip"]
    use(rack, ctx, "zip", bound=bound)
    # It need not be programmed.
    assert sorted(cards(rack)) == ["idle 1", "zip"]


def report(site: Site, **parts: base.Deployable) -> None:
    """Have the host report two cards only: one that runs nothing, and one with that part."""
    idle = hosts.deployable("host-1_idle", range(2), program_mode="dynamic", function="")
    hosts.apply(
        hosts.device("idle", idle), *(hosts.device(name, part) for name, part in parts.items())
    )
    site.placement.sync()


def test_what_is_being_cleaned_is_not_programmed(rack: Site, ctx: context.RequestContext) -> None:
    profile(rack, {"accel:function_id": ZIP})
    kept = {"program_mode": "dynamic", "function": AES, "cleans": True}
    report(rack, aes=hosts.deployable("host-1_aes", range(16, 18), **kept))
    uuid = use(rack, ctx, "aes")
    release.delete_arqs(ctx, [uuid])
    assert uuid not in boots.states(ctx)
    assert cards(rack) == ["idle 1"]


def test_what_somebody_has_under_another_name_is_not_programmed(rack, ctx) -> None:
    profile(rack, {"accel:function_id": ZIP})
    use(rack, ctx, "aes")
    known = {"program_mode": "dynamic", "function": AES}
    report(rack, aes=hosts.deployable("host-1_renamed", range(16, 18), **known))
    assert cards(rack) == ["idle 1"]
    change(rack, {"accel:function_id": AES})
    assert cards(rack) == ["renamed", "idle 1"]


def test_what_contradicts_itself_has_no_candidates(rack: Site) -> None:
    trait = program.function_trait("", AES)
    # Releases before took such a profile.
    groups = [FPGA | {f"trait:{trait}": "required", "accel:function_id": ZIP}]
    profiles.create_profile(name="p", groups=groups, description=None)
    assert cards(rack) == []
    change(rack, {"accel:bitstream_id": "no-image"})
    assert cards(rack) == []


def test_accelerators_that_are_near_each_other_come_first(site: Site) -> None:
    places: dict[str, dict[str, str | int]] = {
        "card": {"pcie_switch": "0000:01:00.0", "numa_node": 0},
        "beside": {"pcie_switch": "0000:01:00.0", "numa_node": 0},
        "node": {"pcie_switch": "0000:02:00.0", "numa_node": 0, "link_group": "one"},
        "far": {"pcie_switch": "0000:03:00.0", "numa_node": 1, "link_group": "one"},
        "unknown": {},
    }
    devices = []
    for number, (name, attributes) in enumerate(places.items()):
        halves = (name, f"{name}2") if name == "card" else (name,)
        parts = (
            hosts.deployable(f"host-1_{half}", (8 * number + index,), attributes=attributes)
            for index, half in enumerate(halves)
        )
        devices.append(hosts.device(name, *parts))
    site.placement.make_provider(hosts.ROOT)
    hosts.apply(*devices)
    site.placement.sync()
    names = {provider_uuid(f"host-1_{name}"): name for name in (*places, "card2")}
    profile(site, {}, {})

    found = [
        frozenset(names[group["rp_uuid"]] for group in candidate["groups"])
        for candidate in candidates(site, "?limit=100")
    ]

    near = [*dict.fromkeys(found)]
    assert near[0] == {"card", "card2"}
    assert near[1] == {"node", "far"}
    assert set(near[2:4]) == {frozenset({"card", "beside"}), frozenset({"card2", "beside"})}
    assert set(near[4:7]) == {frozenset({one, "node"}) for one in ("card", "card2", "beside")}
    assert len(near) == 15
