# SPDX-License-Identifier: Apache-2.0
"""Function pools over HTTP: what they count, which deployables they choose, and what they leave.

What a conductor does for a pool is done here in the test's own thread, and operations end as the
test says; ``test_live.py`` has everything in one.
"""

from __future__ import annotations

import pytest

from cyborg import db, work
from cyborg.db import locks, models
from cyborg.tests import engine, hosts
from cyborg.tests.fpgas import AES, AES_OTHERWISE, SIX, ZIP, Fpgas


@pytest.mark.every_database
def test_a_pool_has_idle_deployables_programmed_a_few_at_a_time(cloud: Fpgas) -> None:
    cloud.report(SIX)
    uuid = cloud.pool(free=5)
    assert cloud.look() == ["host-1_a", "host-1_b"]
    assert cloud.look_again() == ["host-1_a", "host-1_b"]
    assert cloud.counts(uuid) == {"pending": 4, "devices": 2}

    cloud.end()

    # What has ended well is news to the pool at once.
    assert cloud.look() == ["host-1_c"]
    cloud.end()
    assert cloud.look_again() == []
    assert cloud.counts(uuid) == {"ready": 6, "surplus": 1, "devices": 3}
    assert cloud.shown(uuid)["reason"] is None
    assert set(cloud.runs().values()) == {AES}


@pytest.mark.every_database
def test_each_run_for_a_pool_that_is_short_writes_what_another_one_writes(cloud: Fpgas) -> None:
    """So that of two on two nodes of a Galera cluster the second is tried again."""
    cloud.report(SIX)
    pools = [cloud.pool("one", free=1), cloud.pool("two", free=1, function_id=ZIP)]
    cloud.look()
    assert engine.times_taken(locks.FUNCTION_POOLS) == 2
    cloud.end()
    cloud.look_again()
    assert all(cloud.counts(uuid)["ready"] for uuid in pools)
    # Who is short of nothing waits for nobody.
    assert engine.times_taken(locks.FUNCTION_POOLS) == 2


def test_what_runs_the_function_already_is_the_pools_however_its_id_is_written(
    cloud: Fpgas,
) -> None:
    cloud.report({"a": AES_OTHERWISE, "b": AES.upper(), "c": ""})
    uuid = cloud.pool(free=4)
    assert cloud.settle() == {"host-1_a": AES_OTHERWISE, "host-1_b": AES.upper()}
    assert cloud.counts(uuid) == {"ready": 4, "devices": 2}


def test_only_what_can_have_a_layout_is_given_it(cloud: Fpgas) -> None:
    card = {"program_mode": "layout", "function": "", "handles": 0}
    small = card | {"attributes": {"layout_1g.12gb": "2", "layout_aaaa-1x": "9"}}
    large = card | {"attributes": {"layout_1G.12-GB": "7", "layout_AAAA-1": "3"}}
    cloud.report({"a": small, "b": large, "c": small})
    slices = cloud.pool("slices", function_id="1g.12gb", free=8, max_devices=2)

    # They have no handles yet: their slots are those of the layout.
    assert cloud.look() == ["host-1_a", "host-1_b"]
    assert cloud.counts(slices) == {"pending": 9, "devices": 2}
    whole = cloud.pool("whole", free=1)
    assert cloud.look() == ["host-1_a", "host-1_b"]
    assert "of 1 that match: 1 being programmed" in cloud.shown(whole)["reason"]


def test_devices_that_fail_are_replaced(cloud: Fpgas) -> None:
    cloud.report(SIX)
    uuid = cloud.pool(free=8, max_devices=4)
    assert sorted(cloud.settle()) == [f"host-1_{name}" for name in "abcd"]

    unhealthy = {"function": AES, "unhealthy": "it is on fire"}
    cloud.report({"a": unhealthy, "c": AES, "d": AES, "e": "", "f": ""})

    assert cloud.counts(uuid) == {"ready": 4, "devices": 2}
    assert sorted(cloud.settle()) == [f"host-1_{name}" for name in "acdef"]
    assert cloud.counts(uuid) == {"ready": 8, "devices": 4}


@pytest.mark.every_database
def test_a_slot_is_ready_only_where_it_could_be_given_out(cloud: Fpgas) -> None:
    cloud.report(dict.fromkeys("abcd", AES))
    uuid = cloud.pool()
    assert cloud.counts(uuid)["ready"] == 8
    cloud.disable("host-1_a")
    assert cloud.counts(uuid)["ready"] == 6
    uuids = {each.name: each.uuid for each in hosts.deployables()}
    path = f"/deployables/{uuids['host-1_b']}/program"
    cloud.site.call("POST", path, {"function_id": ZIP}, "2.4")
    assert cloud.counts(uuid)["ready"] == 4
    with db.writer() as session:
        # What this one runs is in doubt.
        lost = models.Deployable.name == "host-1_c"
        db.update(session, models.Deployable, lost, program_state=models.LOST)
        work.want(session, work.PROGRAM, [uuids["host-1_c"]])
    assert cloud.counts(uuid)["ready"] == 2
    with db.writer() as session:
        db.update(session, models.Host, down=True)
    assert cloud.counts(uuid).get("ready", 0) == 0


@pytest.mark.every_database
def test_hosts_and_traits_narrow_a_pool(cloud: Fpgas) -> None:
    fast = ("CUSTOM_FAKE_DEVICE", "CUSTOM_FAST")
    cloud.report({"a": "", "b": {"function": "", "traits": fast}}, host="rack-1_x")
    cloud.report({"a": "", "b": {"function": "", "traits": fast}}, host="rack-10x")
    cloud.report({"a": "", "b": {"function": "", "traits": fast}}, host="RACK-1_y")
    # An underscore is no wildcard, and neither is a percent sign; case means nothing.
    uuid = cloud.pool(free=20, hosts="Rack-1_*", traits=["CUSTOM_FAST"])
    assert sorted(cloud.settle()) == ["RACK-1_y_b", "rack-1_x_b"]
    none = cloud.pool("none", free=1, hosts="%")
    by_node = cloud.pool("node", function_id=ZIP, free=1, hosts="*x.example", traits=[])
    cloud.settle()
    assert (cloud.counts(none), cloud.counts(by_node)["devices"]) == ({}, 1)
    assert cloud.shown(none)["reason"] == (
        "No programmable deployable is left for the pool."
    )
    assert cloud.counts(uuid)["ready"] == 4


@pytest.mark.every_database
def test_a_pool_says_why_it_cannot(cloud: Fpgas) -> None:
    cloud.report({**dict.fromkeys("abc", ""), "d": {"function": "", "unhealthy": "smoke"}})
    cloud.report({"x": {"function": None, "program_mode": None}}, host="host-2")
    cloud.use("host-1_a")
    cloud.disable("host-1_b")
    uuid = cloud.pool(free=9)
    assert cloud.look() == ["host-1_c"]
    cloud.end("The tool said no.")
    assert cloud.look_again() == []
    shown = cloud.shown(uuid)
    assert shown["reason"] == (
        "No other deployable can be programmed now; of 4 that match: "
        "2 disabled, unhealthy, missing or on a host that is down, 1 failed in the last 300 s, "
        "1 in use. The last failure: The tool said no."
    )
    assert (shown["wanted"], shown["ready"], shown["updated_at"]) == (9, 0, None)


@pytest.mark.every_database
def test_what_failed_is_tried_again_after_a_while_or_for_something_else(cloud: Fpgas) -> None:
    cloud.report({"a": ""})
    uuid = cloud.pool()
    cloud.look()
    cloud.end("no")
    assert cloud.look_again() == []
    body = {"name": "p", "function_id": AES, "free": 2, "max_devices": 1}
    image = {"image_uuid": models.new_uuid()}
    cloud.site.call("PUT", f"/function_pools/{uuid}", body | image, "2.4")
    assert cloud.look() == ["host-1_a"]
    cloud.end("no")
    assert cloud.look_again() == []
    with db.writer() as session:
        early = models.Operation.ended_ms - 300_000
        db.update(session, models.Operation, ended_ms=early)
    assert cloud.look_again() == ["host-1_a"]


@pytest.mark.every_database
def test_a_pool_takes_what_others_can_do_without_and_nothing_else(cloud: Fpgas) -> None:
    cloud.report({**dict.fromkeys("abc", AES), "d": "unknown"})
    aes = cloud.pool("aes", free=4)
    assert cloud.counts(aes) == {"ready": 6, "surplus": 2, "devices": 3}
    zipped = cloud.pool("zip", function_id=ZIP, free=6)
    cloud.look()
    assert cloud.end() == ["host-1_a", "host-1_d"]
    assert cloud.look_again() == []
    assert cloud.counts(aes) == {"ready": 4, "devices": 2}
    assert cloud.counts(zipped) == {"ready": 4, "devices": 2}
    assert cloud.shown(zipped)["reason"].endswith("of 2 that match: 2 needed by another pool.")
    # Whoever needs less gives more.
    body = {"name": "aes", "function_id": AES, "free": 1, "max_devices": 9}
    cloud.site.call("PUT", f"/function_pools/{aes}", body, "2.4")
    assert len([name for name in cloud.settle().values() if name == ZIP]) == 3


@pytest.mark.every_database
def test_two_pools_do_not_both_count_on_one_surplus(cloud: Fpgas) -> None:
    cloud.report(dict.fromkeys("abc", AES))
    cloud.pool("aes", free=3)
    cloud.report({**dict.fromkeys("abc", AES), "d": {"function": AES, "handles": 1}})
    for number in range(3):
        cloud.pool(f"other-{number}", function_id=f"other-{number}", free=1)
    for _ in range(3):
        cloud.look_again()
        cloud.end()
    # Three of seven slots stay: two cards, and no two pools have taken one each too many.
    assert list(cloud.runs().values()).count(AES) >= 2
    listed = cloud.site.call("GET", "/function_pools?name=aes", version="2.4")["function_pools"]
    assert [pool["ready"] >= 3 for pool in listed] == [True]


def test_a_pool_of_an_image_has_what_runs_another_image_of_the_function_rewritten(
    cloud: Fpgas,
) -> None:
    cloud.report({"a": AES})
    image = models.new_uuid()
    uuid = cloud.pool(image_uuid=image)
    assert cloud.counts(uuid) == {}
    assert cloud.look() == ["host-1_a"]
    cloud.end()
    assert cloud.counts(uuid) == {"ready": 2, "devices": 1}


def test_what_is_larger_than_needed_is_taken_last(cloud: Fpgas) -> None:
    cloud.report({"a": {"function": "", "handles": 8}, "b": {"function": "", "handles": 1}})
    cloud.report({"c": ""}, host="host-2")
    cloud.pool(free=2, max_devices=1)
    assert sorted(cloud.settle()) == ["host-2_c"]


def _at(switch: str, node: int, **more: str) -> dict[str, object]:
    return {"function": "", "attributes": {"pcie_switch": switch, "numa_node": node, **more}}


@pytest.mark.every_database
def test_what_is_near_to_what_the_pool_has_is_taken_first(cloud: Fpgas) -> None:
    one, two, three = (f"0000:0{number}:00.0" for number in (1, 2, 3))
    cloud.report({"a": _at(one, 0), "b": _at(two, 1), "c": _at(three, 0), "d": _at(one, 0)})
    # A switch of another host is not near.
    cloud.report({"a": _at(one, 0)}, host="host-2")
    cloud.pool(free=6)

    assert cloud.look() == ["host-1_a", "host-1_d"]
    cloud.end()
    assert cloud.look() == ["host-1_c"]


def test_what_is_linked_is_nearer_than_what_has_the_same_switch(cloud: Fpgas) -> None:
    groups = zip("abcd", "xyxy", strict=True)
    cloud.report({name: _at("0000:01:00.0", 0, link_group=group) for name, group in groups})
    cloud.pool(free=4)

    assert cloud.look() == ["host-1_a", "host-1_c"]


def test_a_deleted_pool_leaves_what_is_programmed(cloud: Fpgas) -> None:
    cloud.report(SIX)
    uuid = cloud.pool(free=5)
    cloud.look()
    cloud.site.call("DELETE", f"/function_pools/{uuid}", version="2.4")
    assert cloud.site.ask("GET", f"/function_pools/{uuid}", version="2.4").status_code == 404
    assert cloud.look_again() == ["host-1_a", "host-1_b"]
    assert cloud.end() == ["host-1_a", "host-1_b"]
    assert cloud.look() == []
    assert cloud.runs() == {"host-1_a": AES, "host-1_b": AES}
