# SPDX-License-Identifier: Apache-2.0
"""Devices and hosts that are tainted, and the profiles that tolerate it."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, history, work
from cyborg.arqs import candidates
from cyborg.common import errors
from cyborg.common.request_groups import TAINT, TOLERATE_TAINT
from cyborg.db import models, paging
from cyborg.handles import release
from cyborg.hosts import draining, flags, removal
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.fpgas import AES, Fpgas
from cyborg.tests.mounted_api import Api
from cyborg.tests.named_devices import device
from cyborg.tests.placement_server import PlacementServer
from cyborg.tests.service import Site

pytestmark = pytest.mark.usefixtures("database")

B = provider_uuid("host-1_b")
TOLERANT = {**boots.GROUP, TOLERATE_TAINT: "true"}
FORBIDDEN = {f"trait:{TAINT}": "forbidden"}
PATH = "/v2/device_profiles"


@pytest.fixture
def cloud(site: Site, ctx: context.RequestContext) -> Fpgas:
    return Fpgas(site, ctx)


def set_taint(what: str, *, tainted: bool) -> None:
    if what == "host" and tainted:
        draining.taint("host-1", None, 1)
    elif what == "host":
        draining.untaint("host-1", 1)
    else:
        (flags.taint_device if tainted else flags.untaint_device)(device("a"))


@pytest.mark.every_database
@pytest.mark.parametrize("what", ["device", "host"])
def test_only_who_tolerates_it_is_given_something(conf, ctx, what) -> None:
    hosts.apply(hosts.card("a"))
    before, intolerant, tolerant = boots.arqs(ctx), boots.arqs(ctx), boots.arqs(ctx, 1, TOLERANT)
    boots.bind(ctx, before, models.new_uuid())
    set_taint(what, tainted=True)
    # What was accepted, or given, before is not taken away.
    engine.drain(conf)
    for _ in range(2):
        with pytest.raises(errors.Conflict, match="is tainted, and group 0 of device profile dp-"):
            boots.bind(ctx, intolerant, models.new_uuid())
    boots.bind(ctx, tolerant, models.new_uuid())
    engine.drain(conf)
    states = boots.states(ctx)
    found = [states[uuid] for (uuid,) in (before, tolerant, intolerant)]
    assert found == [models.BOUND, models.BOUND, models.INITIAL]
    # A guest that was there leaves as ever.
    release.delete_arqs(ctx, before)
    engine.drain(conf)
    assert len(boots.handles(ctx)) == 1
    set_taint(what, tainted=False)
    boots.bind(ctx, intolerant, models.new_uuid())
    engine.drain(conf)
    assert boots.states(ctx)[intolerant[0]] == models.BOUND


@pytest.mark.parametrize("what", ["device", "host"])
def test_what_nova_reads_keeps_it_out_of_the_candidates(api, placement, card, conf, what) -> None:
    hosts.apply(hosts.card("a"), hosts.card("b", range(4, 8)))
    placement.sync()
    for name, group in (("plain", boots.GROUP), ("tolerant", TOLERANT)):
        api.call("POST", PATH, {"name": name, "groups": [dict(group)]})

    def candidates_of(name: str) -> set[str]:
        """What Placement has for the profile, as Nova would ask it."""
        (profile,) = api.ask("GET", f"{PATH}?name={name}", version="2.0").json["device_profiles"]
        return asked(placement, profile["groups"][0])

    set_taint(what, tainted=True)
    # Placement does not know the trait yet, and would refuse a request that forbids it.
    assert candidates_of("plain") == candidates_of("tolerant") == {boots.RP, B}
    placement.sync()
    left = {"device": {B}, "host": set()}[what]
    assert candidates_of("plain") == left
    assert candidates_of("tolerant") == {boots.RP, B}
    groups = api.call("GET", f"{PATH}/plain")["groups"]
    assert hosts_of(conf, [dict(boots.GROUP)]) == left
    assert hosts_of(conf, [dict(TOLERANT)]) == {boots.RP, B}

    shown = api.ask("GET", f"{PATH}/plain", version="2.3").json["device_profile"]
    assert shown["groups"] == [{**boots.GROUP, **FORBIDDEN}]
    # A client that sends back what it was shown changes nothing.
    again = {"name": "plain", "groups": shown["groups"]}
    assert api.ask("PUT", f"{PATH}/plain", again).status_int == 200
    assert api.call("GET", f"{PATH}/plain")["groups"] == groups == [boots.GROUP]

    set_taint(what, tainted=False)
    placement.sync()
    assert candidates_of("plain") == {boots.RP, B}
    shown = api.ask("GET", f"{PATH}/plain", version="2.3").json["device_profile"]
    assert shown["groups"] == groups


def asked(placement: PlacementServer, group: dict[str, str]) -> set[str]:
    traits = ",".join(
        ("!" if how == "forbidden" else "") + name.removeprefix("trait:")
        for name, how in group.items()
        if name.startswith("trait:")
    )
    query = f"resources1=FPGA:{group['resources:FPGA']}&required1={traits}"
    answer = placement.call("GET", f"/allocation_candidates?{query}")
    return {uuid for each in answer["allocation_requests"] for uuid in each["allocations"]}


def hosts_of(conf: cfg.ConfigOpts, groups: list[dict[str, str]]) -> set[str]:
    found = candidates.find(conf, groups, most=10)
    return {choice.deployable.rp_uuid for each in found for choice in each.choices}


def test_what_a_group_may_say_of_it(api: Api) -> None:
    def send(group: dict[str, Any], version: str = "latest") -> Any:
        body: Any = {"name": "one", "groups": [{"resources:FPGA": "1", **group}]}
        sent = body if version == "latest" else [body]
        return api.ask("POST", PATH, sent, version=version)

    assert "must be true or false" in send({TOLERATE_TAINT: "perhaps"}).text
    for version in ("2.0", "latest"):
        refused = send({f"trait:{TAINT}": "required"}, version)
        assert (refused.status_int, "cannot require" in refused.text) == (400, True)
    assert send({**FORBIDDEN, TOLERATE_TAINT: " True "}).json["groups"] == [
        {"resources:FPGA": "1", TOLERATE_TAINT: "True"}
    ]


def test_a_reason_is_kept_shown_and_remembered(api: Api) -> None:
    hosts.apply(hosts.card("a"))
    uuid = device("a")
    for path in (f"/v2/devices/{uuid}", "/v2/hosts/host-1"):
        for body in ({"reason": "New firmware"}, None, {"reason": "Another one"}):
            api.call("POST", f"{path}/taint", body)
        shown = api.call("GET", path)
        assert (shown["tainted"], shown["taint_reason"]) == (True, "Another one")
        assert api.ask("POST", f"{path}/taint", {"reason": 1}).status_int == 400
        assert "tainted" not in api.ask("GET", path, version="2.3").json
        assert api.ask("POST", f"{path}/taint", version="2.3").status_int == 404
    assert [row["uuid"] for row in api.call("GET", "/v2/devices?tainted=true")["devices"]] == [uuid]
    for path in (f"/v2/devices/{uuid}", "/v2/hosts/host-1"):
        with db.writer() as session:
            session.execute(sa.delete(models.Work))
        api.call("POST", f"{path}/untaint")
        assert work.is_wanted(work.PLACEMENT, "host-1")
        shown = api.call("GET", path)
        assert (shown["tainted"], shown["taint_reason"]) == (False, None)
    found = history.list_entries(None, paging.ALL, kind=history.TAINTED)
    assert [(each.device_uuid, each.private_reason) for each in found] == [
        *((uuid, reason) for reason in ("New firmware", "Another one")),
        *((None, reason) for reason in ("New firmware", "Another one")),
    ]
    assert all(each.hostname == hosts.ROOT and each.ended_ms for each in found)
    assert api.ask("POST", f"/v2/devices/{models.new_uuid()}/taint").status_int == 404


def test_a_host_that_is_removed_comes_back_untainted(ctx: context.RequestContext) -> None:
    hosts.apply(hosts.card("a"))
    draining.taint("host-1", None, 1)
    with db.writer() as session:
        db.update(session, models.Host, down=True)
        uuid = session.scalars(sa.select(models.Host.uuid)).one()
    removal.remove_host(uuid, force=False)
    hosts.apply(hosts.card("a"))
    assert not draining.get_host("host-1", 1).host.tainted


@pytest.mark.every_database
def test_pools_neither_count_nor_program_what_is_tainted(cloud: Fpgas) -> None:
    cloud.report({"a": AES, "b": "", "c": ""})
    uuid = cloud.pool(free=1)
    assert cloud.look() == []
    for letter in "ab":
        flags.taint_device(device(letter))
    assert cloud.counts(uuid) == {}
    assert cloud.look_again() == ["host-1_c"]
    cloud.end()
    flags.taint_device(device("c"))
    assert cloud.look_again() == []
    assert "1 tainted" in cloud.shown(uuid)["reason"]
