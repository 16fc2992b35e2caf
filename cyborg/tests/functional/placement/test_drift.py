# SPDX-License-Identifier: Apache-2.0
"""Whoever changes Placement by hand: refusals say so, and have it put right."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, work
from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.placement import audit, compare, sync
from cyborg.tests import engine, hosts
from cyborg.tests.consumers import as_member, ask, call, profile, wish
from cyborg.tests.passing_time import let_seconds_pass
from cyborg.tests.placement_server import PlacementServer
from cyborg.tests.service import Site
from cyborg.tests.status_command import Status

pytestmark = pytest.mark.slow

A, B = provider_uuid("host-1_a"), provider_uuid("host-1_b")
CARDS = (("a", 0), ("b", 4))
TRAITS = ("CUSTOM_FAKE_DEVICE", "CUSTOM_FAST")
Edit = Callable[[PlacementServer], object]


def _everywhere(change: Callable[[PlacementServer, str], object]) -> Edit:
    def edit(placement: PlacementServer) -> None:
        for uuid in (A, B):
            change(placement, uuid)

    return edit


def _delete(placement: PlacementServer, uuid: str) -> None:
    placement.call("DELETE", f"/resource_providers/{uuid}")


def _register_anew(placement: PlacementServer) -> None:
    _everywhere(_delete)(placement)
    placement.call("DELETE", f"/resource_providers/{placement.find(hosts.ROOT)}")
    placement.make_provider(hosts.ROOT)


def _move(placement: PlacementServer) -> None:
    other = placement.make_provider("elsewhere")
    for uuid, name in ((A, "host-1_a"), (B, "host-1_b")):
        _delete(placement, uuid)
        body = {"name": name, "uuid": uuid, "parent_provider_uuid": other}
        placement.call("POST", "/resource_providers", body)


def _forget_trait(placement: PlacementServer) -> None:
    _everywhere(lambda there, uuid: there.set_traits(uuid, "CUSTOM_FAKE_DEVICE"))(placement)
    placement.call("DELETE", "/traits/CUSTOM_FAST")


def _taint(placement: PlacementServer, uuid: str) -> None:
    placement.set_traits(uuid, *TRAITS, "CUSTOM_CYBORG_TAINTED")


def _few(**amounts: int) -> Edit:
    def change(placement: PlacementServer, uuid: str) -> None:
        placement.set_inventories(uuid, FPGA={"total": 4, "max_unit": 4} | amounts)

    return _everywhere(change)


#: What somebody does to Placement, and what is said of it.
EDITS: dict[str, tuple[Edit, str]] = {
    "deleted": (_everywhere(_delete), f"Provider host-1_a ({A}) is missing below {hosts.ROOT}."),
    "registered anew": (_register_anew, f"Root provider {hosts.ROOT} has uuid "),
    "moved": (_move, "is missing below"),
    "no inventory": (_everywhere(PlacementServer.set_inventories), "offers no FPGA"),
    "reserved": (_few(reserved=4), "has reserved 4 of FPGA instead of 0"),
    "at most none": (_few(min_unit=3), "has min_unit 3 of FPGA instead of 1"),
    "traits": (_everywhere(PlacementServer.set_traits), "lacks traits CUSTOM_FA"),
    "trait": (_forget_trait, "lacks traits CUSTOM_FAST"),
    "tainted": (_everywhere(_taint), "should not have: CUSTOM_CYBORG"),
}


def settle(conf: cfg.ConfigOpts) -> None:
    """Do all that is due, Placement's work too."""
    engine.drain(conf)
    # The second time for what somebody has removed of Placement's names meanwhile.
    for _ in range(2):
        engine.make_due()
        if not (item := engine.take("me", 600, [work.PLACEMENT])):
            return
        try:
            sync.sync_host(conf, item.key, lambda: None)
        except work.TryLater as exc:
            work.back_off(item, str(exc), exc.error_code)
        else:
            work.finish(item)


@pytest.fixture
def rack(site: Site, placement: PlacementServer) -> Site:
    """A host with two cards of four, in Placement too, and nobody who works, or is waited for."""
    site.conf.set_override("bind_wait", 0, group="api")
    placement.make_provider(hosts.ROOT)
    hosts.apply(*(hosts.card(name, range(at, at + 4), traits=TRAITS) for name, at in CARDS))
    profile(site, {"trait:CUSTOM_FAST": "required"})
    settle(site.conf)
    let_seconds_pass(20)
    return site


def wanted() -> list[int]:
    """How often the sync of the host was wanted."""
    with db.reader() as session:
        return list(session.scalars(sa.select(models.Work.wanted).where(
            models.Work.kind == work.PLACEMENT
        )))  # fmt: skip


def preview(site: Site) -> str | None:
    """Why nothing would be given; None if something would."""
    reason: str | None = call(site, "POST", "", wish() | {"dry_run": True})["state_reason"]
    return reason


def test_a_refusal_says_what_differs_and_has_it_put_right(rack: Site) -> None:
    rack.placement.answer_at_once(rack.conf)
    assert preview(rack) is None
    for edit, told in EDITS.values():
        edit(rack.placement)
        assert told in (reason := str(preview(rack)))
        assert "all of them together" not in reason
        assert "Placement does not have what" in ask(rack, "POST", "", wish()).text
        by_member = as_member(rack, "POST", "", wish())
        assert by_member.status_code == 409
        assert "ask again in a minute" in by_member.text
        assert "host-1" not in by_member.text
        assert A not in by_member.text
        found = rack.call("GET", "/device_profiles/p/candidates", version="2.4")
        assert found["candidates"] == []
        assert "Placement does not have what" in found["reason"]
        # However often it is asked for.
        assert wanted() == [1], told

        settle(rack.conf)
        rack.placement.assert_right("host-1")
        assert preview(rack) is None
        found = rack.call("GET", "/device_profiles/p/candidates", version="2.4")
        assert (len(found["candidates"]), found["reason"]) == (2, None)
        let_seconds_pass(20)


def test_it_is_put_right_in_a_minute_though_nobody_asks(rack: Site) -> None:
    for kind, (edit, _) in EDITS.items():
        edit(rack.placement)
        audit.take_turns(rack.conf)
        assert wanted() == [], kind
        let_seconds_pass(60)
        audit.take_turns(rack.conf)
        settle(rack.conf)
        rack.placement.assert_right("host-1")


def test_a_look_at_what_is_right_costs_one_request(rack: Site, monkeypatch) -> None:
    # Else it may be the one in an hour that reads all.
    monkeypatch.setattr(audit, "_began", lambda *_: False)
    audit.take_turns(rack.conf)
    settle(rack.conf)
    let_seconds_pass(61)
    rack.placement.calls.clear()
    audit.take_turns(rack.conf)
    settle(rack.conf)
    assert len(rack.placement.calls) == 1


def test_a_host_that_is_asked_for_is_put_right_and_not_told(rack: Site) -> None:
    known = as_member(rack, "POST", "", wish(device_profile_name="p", hosts="host-2*"))
    _everywhere(_delete)(rack.placement)
    refused = as_member(rack, "POST", "", wish(device_profile_name="p", hosts="host-1*"))
    assert refused.json()["errors"][0]["detail"] == known.json()["errors"][0]["detail"]
    assert wanted() == [1]
    settle(rack.conf)


def test_what_is_claimed_there_alone_is_no_difference(rack: Site) -> None:
    for uuid in (A, B):
        rack.placement.allocate(models.new_uuid(), uuid, FPGA=4)
    assert "others have claimed it there" in str(preview(rack))
    assert wanted() == []


def test_a_node_that_does_not_come_back(rack: Site, conf: cfg.ConfigOpts) -> None:
    _everywhere(_delete)(rack.placement)
    rack.placement.call("DELETE", f"/resource_providers/{rack.placement.find(hosts.ROOT)}")
    conf.set_override("create_root_provider", False, group="placement")
    assert "There is no root provider host-1.example" in str(preview(rack))
    settle(rack.conf)
    assert "none of 2 is in Placement: nova-compute of their nodes has yet" in str(preview(rack))
    rack.placement.make_provider(hosts.ROOT)
    settle(rack.conf)
    assert preview(rack) is None


def test_a_placement_that_is_away_is_another_refusal(rack: Site) -> None:
    _everywhere(_delete)(rack.placement)

    def die(method: str, path: str) -> None:
        if path.startswith("/resource_providers"):
            raise ConnectionResetError

    rack.placement.before = die
    assert ask(rack, "POST", "", wish()).status_code == 409
    rack.placement.obey()
    let_seconds_pass(60)
    audit.take_turns(rack.conf)
    settle(rack.conf)


@pytest.mark.makes_up_rows
def test_check_repairs_it(
    rack: Site, tmp_path: Any, database: sa.Engine, database_url: str
) -> None:
    status = Status(tmp_path, database_url)
    token = ["auth_type = admin_token", "token = admin"]
    status.set("placement", *token, f"endpoint = {rack.placement.url}")
    _few(reserved=4)(rack.placement)
    assert status("check")[0] == 1
    assert wanted() == []
    _, found = status.json("check", "--format", "json", "--repair")
    assert {each["repair"] for each in found["findings"]} == {"A conductor puts it right now."}
    settle(rack.conf)
    assert status.json("check", "--format", "json")[0] == 0


@pytest.mark.parametrize("seed", range(4))
def test_edits_at_random_while_consumers_come_and_go(rack: Site, seed: int) -> None:
    """A refusal is true by the database, or says what differs; and in the end all is right."""
    rack.placement.answer_at_once(rack.conf)
    choice = random.Random(seed)
    mine: list[str] = []
    for _ in range(25):
        edit, _ = choice.choice(list(EDITS.values()))
        # What has allocations cannot be deleted, or lose its inventory.
        with contextlib.suppress(AssertionError):
            edit(rack.placement)
        if mine and choice.random() < 0.5:
            ask(rack, "DELETE", f"/{mine.pop()}")
        body = wish()
        answer = ask(rack, "POST", "", body)
        if answer.status_code == 202:
            mine.append(body["consumer"]["uuid"])
        elif len(mine) < 8:
            assert answer.status_code == 409
            assert "Placement" in answer.text or "free of one" in answer.text, answer.text
        if choice.random() < 0.7:
            engine.make_due()
            settle(rack.conf)
    let_seconds_pass(60)
    audit.take_turns(rack.conf)
    engine.make_due()
    settle(rack.conf)
    rack.placement.assert_right("host-1")
    assert compare.compare_host(rack.conf, "host-1") == compare.Comparison()
    held = list(rack.held().values())
    assert len(held) == len(set(held))
