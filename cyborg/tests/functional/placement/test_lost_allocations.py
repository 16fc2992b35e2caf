# SPDX-License-Identifier: Apache-2.0
"""An instance whose allocation is gone from Placement is looked at, and released if Nova agrees."""

from __future__ import annotations

import itertools

import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, work
from cyborg.audits import lost_allocations, orphans
from cyborg.conductor import service as conductor_service
from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.placement.client import PlacementError
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.novasink import NovaSink
from cyborg.tests.placement_server import PlacementServer
from cyborg.tests.service import RP, Site, until

pytestmark = pytest.mark.usefixtures("database")

A, B = provider_uuid("host-1_a"), provider_uuid("host-1_b")
_owners = itertools.count()


@pytest.fixture
def cards(
    conf: cfg.ConfigOpts, root: str, placement: PlacementServer, sink: NovaSink, database: sa.Engine
) -> None:
    conf.clear_override("allocation_audit_interval", group="conductor")
    hosts.apply(hosts.card("a"), hosts.card("b", range(4, 8)))
    placement.sync()


@pytest.fixture
def instance(
    conf: cfg.ConfigOpts,
    ctx: context.RequestContext,
    placement: PlacementServer,
    sink: NovaSink,
    cards: None,
) -> str:
    """An instance with an accelerator, which all three books have."""
    uuid = models.new_uuid()
    sink.servers.add(uuid)
    placement.allocate(uuid, A, FPGA=1)
    boots.bind(ctx, boots.arqs(ctx), uuid)
    engine.drain(conf)
    sink.asked.clear()
    return uuid


def let_pass(seconds: int) -> None:
    """Make every look, and every bind, so much older."""
    earlier_ms = seconds * 1000
    arq, host = models.Arq, models.Host
    columns = ("bind_started_ms", "instance_asked_ms", "instance_missed_ms", "allocation_missed_ms")
    aged = {name: getattr(arq, name) - earlier_ms for name in columns}
    with db.writer() as session:
        db.update(session, host, allocations_ms=host.allocations_ms - earlier_ms)
        db.update(session, arq, **aged)


def look(conf: cfg.ConfigOpts) -> list[str]:
    """Do what a conductor does when an interval has passed; the work it did."""
    let_pass(conf.conductor.allocation_audit_interval + 1)
    lost_allocations.take_turns(conf)
    orphans.want_check(conf)
    handlers = conductor_service.handlers(conf)
    kinds = [work.ALLOCATIONS, work.INSTANCES]
    done: list[str] = []
    while item := engine.take(f"test#{next(_owners)}", 600.0, kinds):
        handlers[item.kind](item)
        work.finish(item)
        done.append(f"{item.kind}/{item.key}")
    return done


def holders() -> list[str | None]:
    """The instances that have ARQs."""
    with db.reader() as session:
        return list(session.scalars(sa.select(models.Arq.consumer_uuid)))


@pytest.mark.every_database
def test_what_both_say_is_gone_is_released_at_once(
    conf: cfg.ConfigOpts,
    sink: NovaSink,
    placement: PlacementServer,
    instance: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert look(conf) == ["allocations/host-1"]
    assert sink.asked == []

    # A server that is deleted while it is built: no DELETE reaches Cyborg. What it has of another
    # provider does not count.
    placement.release(instance)
    placement.allocate(instance, B, FPGA=1)
    sink.servers.clear()
    sink.deleted = {instance}
    assert look(conf) == ["allocations/host-1", "instances/nova"]
    assert holders() == []
    assert f"Instance {instance} is gone from Nova and has no allocation" in caplog.text


@pytest.mark.every_database
def test_a_nova_that_knows_none_of_the_instances_releases_nothing(
    conf: cfg.ConfigOpts,
    ctx: context.RequestContext,
    sink: NovaSink,
    placement: PlacementServer,
    instance: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where [nova] is of another region, and so is [placement], which has these names too."""
    placement.release(instance)
    sink.servers.clear()
    for _ in range(3):
        assert look(conf) == ["allocations/host-1", "instances/nova"]
    assert holders() == [instance]
    assert "1 that it does not say it has deleted keep theirs" in caplog.text

    other = models.new_uuid()
    sink.servers.add(other)
    placement.allocate(other, A, FPGA=1)
    boots.bind(ctx, boots.arqs(ctx), other)
    engine.drain(conf)
    look(conf)
    assert holders() == [other]


@pytest.mark.every_database
def test_what_only_placement_says_releases_nothing(
    conf: cfg.ConfigOpts, sink: NovaSink, placement: PlacementServer, instance: str
) -> None:
    placement.release(instance)
    for _ in range(3):
        assert look(conf) == ["allocations/host-1", "instances/nova"]
    assert holders() == [instance]
    # Later Nova is asked in its turn only.
    let_pass(700)
    look(conf)
    sink.asked.clear()
    assert look(conf) == ["allocations/host-1", "instances/nova"]
    assert sink.asked == []

    placement.allocate(instance, A, FPGA=1)
    look(conf)
    sink.servers.clear()
    let_pass(conf.conductor.instance_audit_interval)
    # What only Nova says has its grace.
    assert "instances/nova" in look(conf)
    assert holders() == [instance]


def test_what_an_instance_holds_without_an_allocation_is_reserved(
    conf: cfg.ConfigOpts,
    ctx: context.RequestContext,
    sink: NovaSink,
    placement: PlacementServer,
    cards: None,
) -> None:
    instance = models.new_uuid()
    sink.servers.add(instance)
    boots.bind(ctx, [*boots.arqs(ctx), *boots.arqs(ctx)], instance)
    engine.drain(conf)
    # It has two, and one allocation: the second one is reserved.
    for allocated, reserved in ((1, 1), (0, 2), (1, 1), (2, 0), (0, 2)):
        placement.release(instance)
        if allocated:
            # Nobody else takes what is reserved meanwhile.
            placement.set_inventories(A, FPGA={"total": 4})
            placement.allocate(instance, A, FPGA=allocated)
        look(conf)
        placement.sync(full=True)
        assert placement.offered(A) == {"FPGA": (4, reserved)}
        assert holders() == [instance, instance]
    sink.servers.clear()
    sink.deleted = {instance}
    look(conf)
    assert holders() == []
    assert work.is_wanted(work.PLACEMENT, "host-1")
    placement.sync()
    assert placement.offered(A) == {"FPGA": (4, 0)}


def test_nothing_is_released_for_a_placement_and_a_nova_of_another_region(
    conf: cfg.ConfigOpts, sink: NovaSink, placement: PlacementServer, instance: str
) -> None:
    # Neither has any of what this one has, and the ARQ has an instance all the same.
    placement.release(instance)
    placement.call("DELETE", f"/resource_providers/{A}")
    sink.servers.clear()
    for _ in range(3):
        look(conf)
    let_pass(conf.conductor.instance_audit_interval + conf.conductor.instance_grace)
    look(conf)
    assert holders() == [instance]
    placement.sync(full=True)


def test_silence_says_nothing(
    conf: cfg.ConfigOpts, sink: NovaSink, placement: PlacementServer, instance: str
) -> None:
    placement.release(instance)
    sink.servers.clear()
    sink.status = 503
    look(conf)
    assert holders() == [instance]
    sink.status = None
    placement.before = lambda _method, _path: webob.Response(status=503)
    with pytest.raises(PlacementError):
        look(conf)
    assert holders() == [instance]


def test_nobody_looks_where_that_is_turned_off(
    conf: cfg.ConfigOpts, placement: PlacementServer, instance: str
) -> None:
    placement.release(instance)
    for group, option, value in (
        ("conductor", "allocation_audit_interval", 0),
        ("conductor", "instance_audit_interval", 0),
        ("nova", "auth_type", None),
        ("placement", "auth_type", None),
    ):
        let_pass(100)
        before = conf[group][option]
        conf.set_override(option, value, group=group)
        lost_allocations.take_turns(conf)
        assert not work.is_wanted(work.ALLOCATIONS, "host-1"), (group, option)
        conf.set_override(option, before, group=group)
    lost_allocations.take_turns(conf)
    assert work.is_wanted(work.ALLOCATIONS, "host-1")


def test_a_conductor_looks_by_itself(
    site: Site, sink: NovaSink, ctx: context.RequestContext
) -> None:
    site.start()
    site.conf.set_override("allocation_audit_interval", 1, group="conductor")
    instance = models.new_uuid()
    sink.servers.add(instance)
    site.placement.allocate(instance, RP, FPGA=1)
    boots.bind(ctx, boots.arqs(ctx), instance, device_rp_uuid=RP)
    until(lambda: sink.events)
    sink.servers.clear()
    sink.deleted = {instance}
    site.placement.release(instance)
    until(lambda: holders() == [])
    site.conf.set_override("allocation_audit_interval", 0, group="conductor")


def test_what_was_bound_long_ago_is_looked_at_in_turns(
    conf: cfg.ConfigOpts,
    ctx: context.RequestContext,
    placement: PlacementServer,
    cards: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conf.set_override("allocation_audit_interval", 30, group="conductor")
    for _ in range(3):
        for provider in (A, B):
            uuid = models.new_uuid()
            placement.allocate(uuid, provider, FPGA=1)
            boots.bind(ctx, boots.arqs(ctx), uuid, device_rp_uuid=provider)
    engine.drain(conf)
    placement.calls.clear()
    assert look(conf) == ["allocations/host-1"]
    path = "GET /resource_providers/{}/allocations"
    assert sorted(placement.calls) == sorted([path.format(A), path.format(B)])

    # Few are all looked at each time.
    let_pass(1000)
    with db.reader() as session:
        assert len(session.scalars(sa.select(models.Arq.id).where(_at(session, 0))).all()) == 6

    # With six ARQs at most six of the twenty parts, each for two intervals.
    monkeypatch.setattr(lost_allocations, "_count_parts", lambda _session: 20)
    with db.reader() as session:
        now_ms = session.scalar(sa.select(db.now_ms())) or 0
        ids = set(session.scalars(sa.select(models.Arq.id)))
        seen = [
            set(session.scalars(sa.select(models.Arq.id).where(_at(session, now))))
            for now in range(now_ms, now_ms + 600_000, 30_000)
        ]
    assert set().union(*seen) == ids
    assert max(map(len, seen)) <= 2
    assert sum(map(len, seen)) == 2 * len(ids)


def _at(session: orm.Session, now_ms: int) -> sa.ColumnElement[bool]:
    return lost_allocations.has_turn(session, now_ms, 30_000)


def test_the_larger_the_cloud_the_smaller_the_part_that_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, ctx: context.RequestContext, conf: cfg.ConfigOpts, cards: None
) -> None:
    # Hosts without guests are not asked for.
    for _ in range(2):
        assert look(conf) == []
    for _ in range(4):
        boots.bind(ctx, boots.arqs(ctx), models.new_uuid())
    with db.reader() as session:
        assert lost_allocations._count_parts(session) == 1
        monkeypatch.setattr(lost_allocations, "_EACH_TIME", 1)
        assert lost_allocations._count_parts(session) == 4
        monkeypatch.setattr(lost_allocations, "_PARTS", 2)
        assert lost_allocations._count_parts(session) == 2


def test_what_all_say_is_gone_is_released_however_much_it_is(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, sink: NovaSink, instance: str
) -> None:
    """As where a stack of servers is deleted while they are built."""
    conf.set_override("max_instance_releases", 1, group="conductor")
    for _ in range(3):
        boots.bind(ctx, boots.arqs(ctx), models.new_uuid())
    engine.drain(conf)
    gone = [uuid for uuid in holders() if uuid and uuid != instance]
    # Of the first Nova has no record left.
    sink.deleted = set(gone[1:])
    let_pass(3000)
    look(conf)
    assert holders() == [instance]
    look(conf)
    assert holders() == [instance]
