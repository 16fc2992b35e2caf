# SPDX-License-Identifier: Apache-2.0
"""Instances that Nova has no more lose their accelerators, and no others ever do."""

from __future__ import annotations

import itertools
from concurrent import futures

import pytest
import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg import db, nova, work
from cyborg.arqs import service
from cyborg.audits import orphans
from cyborg.conductor import gauges
from cyborg.conductor.service import ConductorService
from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.states import handle_states
from cyborg.tests import boots, engine, hosts
from cyborg.tests.logs import ours_of
from cyborg.tests.novasink import NovaSink
from cyborg.tests.service import RP, Site, until

pytestmark = pytest.mark.usefixtures("database")

_owners = itertools.count()


@pytest.fixture(autouse=True)
def card(database: sa.Engine) -> None:
    hosts.apply(hosts.card("a"), hosts.card("b", range(4, 8), cleans=True))


def boot(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, sink: NovaSink, letter: str = "a"
) -> str:
    """The uuid of an instance with an accelerator of that card, which Nova knows."""
    instance = models.new_uuid()
    sink.servers.add(instance)
    provider = provider_uuid(f"host-1_{letter}")
    boots.bind(ctx, boots.arqs(ctx), instance, device_rp_uuid=provider)
    engine.drain(conf)
    return instance


def item() -> work.Item | None:
    """Take the work of asking, if it is wanted and nobody has it."""
    return engine.take(f"test#{next(_owners)}", 600.0, [work.INSTANCES])


def look(conf: cfg.ConfigOpts) -> bool:
    """Do what a conductor does on its own; False where it asks for nothing."""
    orphans.want_check(conf)
    claimed = item()
    if claimed is not None:
        orphans.check_instances(conf, claimed)
        assert work.finish(claimed)
    return claimed is not None


def let_seconds_pass(seconds: int) -> None:
    """Let all that Nova was asked, and what was released, be that much longer ago."""
    arq = models.Arq
    aged = {
        column: getattr(arq, column) - seconds * 1000
        for column in ("instance_asked_ms", "instance_missed_ms")
    }
    with db.writer() as session:
        db.update(session, arq, **aged, updated_at=arq.updated_at)
        began_ms = models.Brake.began_ms
        db.update(session, models.Brake, began_ms=began_ms - seconds * 1000)


def let_an_interval_pass(conf: cfg.ConfigOpts) -> None:
    let_seconds_pass(conf.conductor.instance_audit_interval + 1)


def let_the_grace_pass(conf: cfg.ConfigOpts) -> None:
    let_seconds_pass(conf.conductor.instance_grace + 1)


def holders() -> dict[str | None, str]:
    """The state of each ARQ by its instance; of one that was deleted that is None."""
    left = sa.select(sa.null(), sa.literal(models.DELETING)).where(handle_states.is_shown())
    query = sa.select(models.Arq.consumer_uuid, models.Arq.state).union(left)
    with db.reader() as session:
        return {row[0]: row[1] for row in session.execute(query)}


@pytest.mark.every_database
def test_an_instance_that_is_gone_for_long_is_released(
    conf: cfg.ConfigOpts,
    ctx: context.RequestContext,
    sink: NovaSink,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stays, gone = boot(conf, ctx, sink), boot(conf, ctx, sink)
    cleaned = boot(conf, ctx, sink, "b")
    both = {stays: models.BOUND, gone: models.BOUND, cleaned: models.BOUND}
    sink.servers -= {gone, cleaned}
    assert not look(conf)
    let_an_interval_pass(conf)
    assert look(conf)
    assert not look(conf)
    assert holders() == both
    let_seconds_pass(conf.conductor.instance_grace - 300)
    assert look(conf)
    assert holders() == both
    let_the_grace_pass(conf)
    assert look(conf)

    # The one whose handle its host cleans goes the way of every DELETE.
    assert holders() == {stays: models.BOUND, None: models.DELETING}
    assert [key.partition("/")[0] for key in engine.pending()] == [work.HOST_STEP]
    told = [record for record in caplog.records if "gone from Nova" in record.message]
    assert {record.levelname for record in told} == {"WARNING"}
    assert {uuid for uuid in both for record in told if uuid in record.message} == {gone, cleaned}
    let_the_grace_pass(conf)
    assert look(conf)
    assert stays in holders()


def errors_of(caplog: pytest.LogCaptureFixture) -> str:
    told = [each.getMessage() for each in ours_of(caplog) if each.levelname == "ERROR"]
    caplog.clear()
    return "\n".join(told)


@pytest.mark.every_database
def test_a_nova_that_knows_none_of_the_instances_releases_nothing(
    conf: cfg.ConfigOpts,
    ctx: context.RequestContext,
    sink: NovaSink,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone, other = boot(conf, ctx, sink), boot(conf, ctx, sink)
    both = {gone: models.BOUND, other: models.BOUND}
    sink.servers.clear()
    for _ in range(4):
        let_the_grace_pass(conf)
        assert look(conf)
        assert holders() == both
    assert "2 that it does not say it has deleted keep theirs" in errors_of(caplog)

    # One that it knows is enough, also if it is not asked for in the same round.
    sink.servers.add(other)
    let_an_interval_pass(conf)
    assert look(conf)
    assert holders() == {other: models.BOUND}
    late = boot(conf, ctx, sink)
    sink.servers.remove(late)
    let_an_interval_pass(conf)
    look(conf)
    with db.writer() as session:
        arq = models.Arq
        aged = {"instance_asked_ms": 0, "instance_missed_ms": 0, "updated_at": arq.updated_at}
        db.update(session, arq, arq.consumer_uuid == late, **aged)
    assert look(conf)
    assert holders() == {other: models.BOUND}
    assert errors_of(caplog) == ""


@pytest.mark.every_database
def test_nova_shows_by_what_it_has_deleted_that_it_is_the_right_one(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, sink: NovaSink
) -> None:
    gone, archived = boot(conf, ctx, sink), boot(conf, ctx, sink)
    sink.servers.clear()
    let_the_grace_pass(conf)
    look(conf)
    sink.deleted = {gone}
    let_the_grace_pass(conf)
    look(conf)
    assert holders() == {archived: models.BOUND}


def test_a_conductor_says_at_its_start_that_nova_is_another_one(
    conf: cfg.ConfigOpts,
    ctx: context.RequestContext,
    sink: NovaSink,
    caplog: pytest.LogCaptureFixture,
) -> None:
    orphans.check_region(conf)
    assert (errors_of(caplog), sink.asked) == ("", [])
    one, _other = boot(conf, ctx, sink), boot(conf, ctx, sink)
    sink.servers.clear()
    service = ConductorService(conf)
    service._check_region()
    assert "Nova has none of 2 instances with accelerators" in errors_of(caplog)
    # One is enough, and silence says nothing.
    sink.servers.add(one)
    service._check_region()
    sink.servers.clear()
    sink.status = 503
    service._check_region()
    sink.stop()
    service._check_region()
    assert errors_of(caplog) == ""


def test_a_nova_of_another_region_than_placement_is_not_asked(
    conf: cfg.ConfigOpts,
    ctx: context.RequestContext,
    sink: NovaSink,
    caplog: pytest.LogCaptureFixture,
) -> None:
    boot(conf, ctx, sink)
    conf.set_override("region_name", "RegionOne", group="placement")
    conf.set_override("region_name", "RegionTwo", group="nova")
    let_an_interval_pass(conf)
    # With endpoint_override nobody looks for a region.
    assert look(conf)
    conf.clear_override("endpoint_override", group="nova")
    sink.asked.clear()
    for _ in range(2):
        let_the_grace_pass(conf)
        assert not look(conf)
    orphans.check_region(conf)
    assert "region_name is RegionTwo, and [placement] region_name is RegionOne" in errors_of(caplog)
    assert sink.asked == []


def held_back(conf: cfg.ConfigOpts) -> float:
    """What the metric shows."""
    found = {each.name: each.samples[0].value for each in gauges.Gauges(conf).collect()}
    return found["cyborg_instances_held_back"]


@pytest.mark.every_database
def test_no_more_are_released_at_a_time_than_permitted(
    conf: cfg.ConfigOpts,
    ctx: context.RequestContext,
    sink: NovaSink,
    caplog: pytest.LogCaptureFixture,
) -> None:
    conf.set_override("max_instance_releases", 1, group="conductor")
    stays, *_ = (boot(conf, ctx, sink) for _ in range(4))
    sink.servers = {stays}
    let_an_interval_pass(conf)
    look(conf)
    assert held_back(conf) == 0
    for left, said in ((3, "2 more instances"), (2, "1 more instances"), (1, "")):
        let_the_grace_pass(conf)
        assert look(conf)
        assert len(holders()) == left
        assert held_back(conf) == left - 1
        assert said in errors_of(caplog)
    assert holders() == {stays: models.BOUND}


@pytest.mark.every_database
def test_rounds_that_are_tried_again_release_no_more(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, sink: NovaSink
) -> None:
    conf.set_override("max_instance_releases", 2, group="conductor")
    stays, *gone = (boot(conf, ctx, sink) for _ in range(4))
    sink.servers = {stays}
    let_an_interval_pass(conf)
    look(conf)
    sink.silent = {gone[1]}
    let_the_grace_pass(conf)
    orphans.want_check(conf)
    for _ in range(3):
        claimed = item()
        assert claimed is not None
        with pytest.raises(ka_exc.ConnectFailure):
            orphans.check_instances(conf, claimed)
        # The next attempt, and one that something else wants, ask for all of them again.
        work.finish(claimed)
        with db.writer() as session:
            db.update(session, models.Arq, instance_asked_ms=0)
            work.want(session, work.INSTANCES, [orphans.KEY])
    sink.silent.clear()
    assert look(conf)
    assert len(holders()) == 2
    assert held_back(conf) == 1


def test_what_is_kept_because_nova_knows_nobody_is_counted(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, sink: NovaSink
) -> None:
    boot(conf, ctx, sink)
    sink.servers.clear()
    for _ in range(2):
        let_the_grace_pass(conf)
        look(conf)
    assert held_back(conf) == 1
    conf.set_override("instance_audit_interval", 0, group="conductor")
    assert held_back(conf) == 0


@pytest.mark.every_database
def test_an_instance_that_nova_finds_again_has_the_whole_grace_before_it(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, sink: NovaSink
) -> None:
    instance = boot(conf, ctx, sink)
    (before,) = (arq.updated_at for arq in service.list_arqs(ctx))
    for _ in range(3):
        sink.servers.clear()
        let_an_interval_pass(conf)
        look(conf)
        let_the_grace_pass(conf)
        sink.servers.add(instance)
        look(conf)
    sink.servers.clear()
    let_an_interval_pass(conf)
    look(conf)
    assert holders() == {instance: models.BOUND}
    assert [arq.updated_at for arq in service.list_arqs(ctx)] == [before]


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 429, 500, 503])
def test_any_other_answer_says_nothing(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, sink: NovaSink, status: int
) -> None:
    instance = boot(conf, ctx, sink)
    # Without the document that Nova would send: a balancer in front of it may answer 404.
    sink.status = status
    sink.servers.clear()
    for _ in range(3):
        let_the_grace_pass(conf)
        assert look(conf)
    assert holders() == {instance: models.BOUND}


def test_silence_says_nothing(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, sink: NovaSink
) -> None:
    instance = models.new_uuid()
    boots.bind(ctx, boots.arqs(ctx), instance)
    # Before there is a connection that is kept.
    sink.stop()
    for _ in range(3):
        let_the_grace_pass(conf)
        orphans.want_check(conf)
        claimed = item()
        assert claimed is not None
        with pytest.raises(ka_exc.ConnectFailure):
            orphans.check_instances(conf, claimed)
        work.finish(claimed)
    assert holders() == {instance: models.BOUND}


@pytest.mark.every_database
def test_silence_about_one_instance_holds_up_no_other(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, sink: NovaSink
) -> None:
    """As where the cell of its server hangs."""
    silent = boot(conf, ctx, sink)
    boot(conf, ctx, sink)
    stays = boot(conf, ctx, sink)
    sink.servers = {stays}
    let_an_interval_pass(conf)
    look(conf)
    sink.silent = {silent}
    let_the_grace_pass(conf)
    orphans.want_check(conf)
    claimed = item()
    assert claimed is not None
    with pytest.raises(ka_exc.ConnectFailure):
        orphans.check_instances(conf, claimed)
    work.finish(claimed)
    look(conf)
    assert holders() == {silent: models.BOUND, stays: models.BOUND}

    # Silence does not say that the instance is there either.
    sink.silent.clear()
    let_an_interval_pass(conf)
    assert look(conf)
    assert holders() == {stays: models.BOUND}


def test_who_does_not_see_all_projects_releases_nothing(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, sink: NovaSink
) -> None:
    instance = boot(conf, ctx, sink)
    sink.servers.clear()
    sink.sees_all = False
    let_the_grace_pass(conf)
    with pytest.raises(nova.MayNotLook, match="role admin"):
        look(conf)
    # Some may list what they may not show.
    sink.sees_all = True
    sink.hidden = {instance}
    for _ in range(3):
        engine.make_due()
        with db.writer() as session:
            db.update(session, models.Work, owner=None)
        look(conf)
        let_the_grace_pass(conf)
    assert holders() == {instance: models.BOUND}


def test_nobody_is_asked_where_nova_is_not_configured_or_that_is_turned_off(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, sink: NovaSink
) -> None:
    boot(conf, ctx, sink)
    let_the_grace_pass(conf)
    conf.set_override("instance_audit_interval", 0, group="conductor")
    assert not look(conf)
    conf.clear_override("instance_audit_interval", group="conductor")
    conf.clear_override("auth_type", group="nova")
    assert not look(conf)
    assert sink.asked == []


@pytest.mark.every_database
def test_each_instance_is_asked_for_once_in_an_interval_by_one_conductor(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, sink: NovaSink
) -> None:
    known = [models.new_uuid() for _ in range(150)]
    sink.servers.update(known[10:])
    row = {"state": models.BIND_FAILED, "device_profile_name": "p", "group": {}, "hostname": "h"}
    rows = [
        {
            **row,
            "uuid": models.new_uuid(),
            "consumer_uuid": known[number % 150],
            "device_rp_uuid": boots.RP,
            "instance_asked_ms": number,
        }
        for number in range(300)
    ]
    with db.writer() as session:
        session.execute(sa.insert(models.Arq), rows)
    with futures.ThreadPoolExecutor() as pool:
        for _ in pool.map(orphans.want_check, [conf] * 8):
            pass
    only = item()
    assert only is not None
    assert item() is None
    orphans.want_check(conf)
    orphans.check_instances(conf, only)
    assert work.finish(only)

    assert not look(conf)
    asked = [path.removeprefix("/servers/") for path in sink.asked if path != "/servers"]
    assert sorted(asked) == sorted(known)
    assert len(holders()) == 150
    let_the_grace_pass(conf)
    look(conf)
    assert holders().keys() == set(known[10:])


def test_a_conductor_asks_by_itself(
    site: Site, sink: NovaSink, ctx: context.RequestContext
) -> None:
    site.start()
    stays, instance = models.new_uuid(), models.new_uuid()
    sink.servers.add(stays)
    for one in (stays, instance):
        boots.bind(ctx, boots.arqs(ctx), one, device_rp_uuid=RP)
    until(lambda: holders() == {stays: models.BOUND, instance: models.BOUND})
    let_an_interval_pass(site.conf)
    until(lambda: sink.asked)
    until(site.idle)
    let_the_grace_pass(site.conf)
    until(lambda: holders() == {stays: models.BOUND})
