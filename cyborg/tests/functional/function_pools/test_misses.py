# SPDX-License-Identifier: Apache-2.0
"""Misses of functions, and what pools and misses cost the database."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from cyborg import db, work
from cyborg.conductor import periodic_tasks
from cyborg.db import models
from cyborg.function_pools import planner
from cyborg.policy.enforcer import Enforcer
from cyborg.tests import boots, callers, engine
from cyborg.tests.counted_statements import SqlCounter
from cyborg.tests.fpgas import AES, AES_OTHERWISE, GROUP, SIX, ZIP, Fpgas

Counting = Callable[[], contextlib.AbstractContextManager[SqlCounter]]


@pytest.mark.every_database
def test_a_miss_lets_a_pool_grow_for_a_while(cloud: Fpgas) -> None:
    cloud.report(SIX)
    cloud.pool("zip", function_id=ZIP, free=0)
    uuid = cloud.pool(free=0, max_devices=2)
    assert cloud.settle() == {}
    assert cloud.miss(function_id=AES_OTHERWISE) == ["pool"]
    assert cloud.look() == ["host-1_a"]
    cloud.end()
    cloud.boot()
    assert cloud.counts(uuid) == {"misses": 1, "ready": 2, "surplus": 1, "devices": 1}
    # An ARQ shows as many misses as there are free slots too few.
    cloud.use("host-1_a", 2)
    cloud.boot(**{"resources:FPGA": "5"})
    assert cloud.counts(uuid)["misses"] == 6
    cloud.settle()
    assert cloud.counts(uuid) == {"misses": 6, "ready": 2, "used": 2, "devices": 2}
    assert cloud.shown(uuid)["reason"] == "It has 2 deployables, and max_devices is 2."
    with db.writer() as session:
        at_ms = models.FunctionMiss.at_ms
        db.update(session, models.FunctionMiss, at_ms=at_ms - 600_000)
    cloud.settle()
    assert cloud.counts(uuid) == {"ready": 2, "used": 2, "surplus": 2, "devices": 2}
    assert cloud.shown(uuid)["reason"] is None


@pytest.mark.every_database
def test_a_project_that_asks_again_and_again_misses_no_more_for_that(
    cloud: Fpgas, enforcer: Enforcer
) -> None:
    uuid, other = cloud.pool(free=0), cloud.pool("zip", function_id=ZIP, free=0)
    for number in ("2", "3", "1"):
        cloud.boot(**{"resources:FPGA": number})
    assert cloud.counts(uuid)["misses"] == 3

    another = callers.admin(enforcer, project_id="project-2")
    boots.arqs(another, group=GROUP | {"resources:FPGA": "4"})
    cloud.boot(**{"accel:function_id": ZIP})

    assert cloud.counts(uuid)["misses"] == 7
    assert cloud.counts(other)["misses"] == 1
    # Whoever posts misses is trusted to have seen each.
    cloud.miss(function_id=AES)
    cloud.miss(function_id=AES)
    assert cloud.counts(uuid)["misses"] == 9


def test_a_profile_tells_what_was_missed(cloud: Fpgas) -> None:
    profiles = {
        "two": [GROUP | {"resources:FPGA": "2"}, {"resources:FPGA": "1"}],
        "none": [{"resources:FPGA": "1"}],
    }
    for name, groups in profiles.items():
        cloud.site.call("POST", "/device_profiles", [{"name": name, "groups": groups}])
    uuid = cloud.pool(free=0)
    assert cloud.miss(device_profile_name="two") == ["pool"]
    assert cloud.counts(uuid) == {"misses": 2}
    assert cloud.miss(function_id="nobody-pools-it") == []
    for body, status, said in (
        ({"device_profile_name": "none"}, 400, "no group of device profile none has the key"),
        ({"device_profile_name": "gone"}, 404, "Device Profile not found with name=gone"),
        ({}, 400, "Give function_id or device_profile_name"),
        ({"function_id": "-"}, 400, "function_id must be the id of a function."),
        ({"function_id": AES, "device_profile_name": "two"}, 400, "and not both"),
    ):
        answer = cloud.site.ask("POST", "/function_misses", body, "2.4")
        assert (answer.status_code, said in answer.text) == (status, True), answer.text


def test_arqs_without_a_function_cost_nothing_more(cloud: Fpgas, count_sql: Counting) -> None:
    def create(**group: str) -> int:
        name = f"dp-{models.new_uuid()}"
        groups = [{"resources:FPGA": "1"} | group]
        cloud.site.call("POST", "/device_profiles", [{"name": name, "groups": groups}])
        with count_sql() as counter:
            cloud.site.call("POST", "/accelerator_requests", {"device_profile_name": name})
        return len(counter.statements)

    create()  # what a process asks once is no cost of the next request
    without = create()
    function = {"accel:function_id": AES}
    assert create(**function) == without + 1
    cloud.pool(free=0)
    cloud.look()
    # A miss and a piece of work.
    assert create(**function) == without + 3


def test_what_there_is_costs_as_much_for_many_pools_as_for_one(
    cloud: Fpgas, count_sql: Counting
) -> None:
    cloud.report({"a": AES, "b": ZIP, "c": ""})

    def cost_of_list() -> int:
        with count_sql() as counter:
            cloud.site.call("GET", "/function_pools", version="2.4")
        return len(counter.statements)

    def cost_of_look() -> int:
        cloud.look()
        with db.writer() as session:
            db.update(session, models.FunctionPool, looked_ms=0)
            work.want(session, work.FUNCTION_POOL, [uuid])
        item = engine.take("test", 60.0, [work.FUNCTION_POOL])
        assert item is not None
        with count_sql() as counter:
            planner.fill(cloud.conf, item)
        work.finish(item)
        return len(counter.statements)

    uuid = cloud.pool(free=100, traits=["CUSTOM_NOBODY_HAS_IT"])
    listed, looked = cost_of_list(), cost_of_look()
    assert listed == 5
    for number in range(5):
        cloud.pool(f"pool-{number}", function_id=f"{AES}{number}", traits=["CUSTOM_T", "CUSTOM_U"])
    assert (cost_of_list(), cost_of_look()) == (listed, looked)


def test_where_nothing_is_due_one_select_tells(cloud: Fpgas, count_sql: Counting) -> None:
    assert planner.want_due in periodic_tasks.TASKS
    cloud.pool()
    planner.want_due(cloud.conf)
    with count_sql() as counter:
        planner.want_due(cloud.conf)
    assert len(counter.matching("SELECT")) == len(counter.statements) == 1
