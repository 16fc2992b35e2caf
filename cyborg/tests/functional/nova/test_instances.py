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
from cyborg.tests.service import RP, until

#: Options that say when an instance is asked for again, and for how long it may be gone.
INTERVAL, GRACE = "instance_audit_interval", "instance_grace"


class Cloud:
    """A cloud whose Nova is the sink; its conductor asks for instances as a test says."""

    def __init__(self, conf: cfg.ConfigOpts, ctx: context.RequestContext, sink: NovaSink) -> None:
        self.conf, self.ctx, self.sink = conf, ctx, sink
        self._owners = itertools.count()

    def boot(self, letter: str = "a") -> str:
        """The uuid of an instance with an accelerator of that card, which Nova knows."""
        provider = provider_uuid(f"host-1_{letter}")
        instance = boots.boot(self.conf, self.ctx, device_rp_uuid=provider)
        self.sink.servers.add(instance)
        return instance

    def item(self) -> work.Item | None:
        """Take the work of asking, if it is wanted and nobody has it."""
        return engine.take(f"test#{next(self._owners)}", 600.0, [work.INSTANCES])

    def look(self, after: str | None = None) -> bool:
        """Do what a conductor does on its own; False where it asks for nothing.

        With ``after`` when the time of that option has passed.
        """
        if after is not None:
            let_seconds_pass(self.conf.conductor[after] + 1)
        orphans.want_check(self.conf)
        claimed = self.item()
        if claimed is not None:
            orphans.check_instances(self.conf, claimed)
            assert work.finish(claimed)
        return claimed is not None

    def look_in_vain(self, after: str | None = GRACE) -> None:
        """The same where Nova does not answer for an instance."""
        if after is not None:
            let_seconds_pass(self.conf.conductor[after] + 1)
        orphans.want_check(self.conf)
        claimed = self.item()
        assert claimed is not None
        with pytest.raises(ka_exc.ConnectFailure):
            orphans.check_instances(self.conf, claimed)
        work.finish(claimed)

    def held_back(self) -> float:
        """What the metric shows."""
        found = {each.name: each.samples[0].value for each in gauges.Gauges(self.conf).collect()}
        return found["cyborg_instances_held_back"]


@pytest.fixture
def cloud(conf, database, ctx, sink) -> Cloud:
    hosts.apply(hosts.card("a"), hosts.card("b", range(4, 8), cleans=True))
    return Cloud(conf, ctx, sink)


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


def holders() -> dict[str | None, str]:
    """The state of each ARQ by its instance; of one that was deleted that is None."""
    left = sa.select(sa.null(), sa.literal(models.DELETING)).where(handle_states.is_shown())
    query = sa.select(models.Arq.consumer_uuid, models.Arq.state).union(left)
    with db.reader() as session:
        return {row[0]: row[1] for row in session.execute(query)}


@pytest.mark.every_database
def test_an_instance_that_is_gone_for_long_is_released(cloud, caplog) -> None:
    stays, gone = cloud.boot(), cloud.boot()
    cleaned = cloud.boot("b")
    both = {stays: models.BOUND, gone: models.BOUND, cleaned: models.BOUND}
    cloud.sink.servers -= {gone, cleaned}
    assert not cloud.look()
    assert cloud.look(INTERVAL)
    assert not cloud.look()
    assert holders() == both
    let_seconds_pass(cloud.conf.conductor.instance_grace - 300)
    assert cloud.look()
    assert holders() == both
    assert cloud.look(GRACE)

    # The one whose handle its host cleans goes the way of every DELETE.
    assert holders() == {stays: models.BOUND, None: models.DELETING}
    assert [key.partition("/")[0] for key in engine.pending()] == [work.HOST_STEP]
    told = [record for record in caplog.records if "gone from Nova" in record.message]
    assert {record.levelname for record in told} == {"WARNING"}
    assert {uuid for uuid in both for record in told if uuid in record.message} == {gone, cleaned}
    assert cloud.look(GRACE)
    assert stays in holders()


def errors_of(caplog: pytest.LogCaptureFixture) -> str:
    told = [each.getMessage() for each in ours_of(caplog) if each.levelname == "ERROR"]
    caplog.clear()
    return "\n".join(told)


@pytest.mark.every_database
def test_a_nova_that_knows_none_of_the_instances_releases_nothing(cloud, caplog) -> None:
    gone, other = cloud.boot(), cloud.boot()
    both = {gone: models.BOUND, other: models.BOUND}
    cloud.sink.servers.clear()
    for _ in range(4):
        assert cloud.look(GRACE)
        assert holders() == both
    assert "2 that it does not say it has deleted keep theirs" in errors_of(caplog)
    assert cloud.held_back() == 2
    cloud.conf.set_override(INTERVAL, 0, group="conductor")
    assert cloud.held_back() == 0
    cloud.conf.clear_override(INTERVAL, group="conductor")

    # One that it knows is enough, also if it is not asked for in the same round.
    cloud.sink.servers.add(other)
    assert cloud.look(INTERVAL)
    assert holders() == {other: models.BOUND}
    late = cloud.boot()
    cloud.sink.servers.remove(late)
    cloud.look(INTERVAL)
    with db.writer() as session:
        arq = models.Arq
        aged = {"instance_asked_ms": 0, "instance_missed_ms": 0, "updated_at": arq.updated_at}
        db.update(session, arq, arq.consumer_uuid == late, **aged)
    assert cloud.look()
    assert holders() == {other: models.BOUND}
    assert errors_of(caplog) == ""


def test_nova_shows_by_what_it_has_deleted_that_it_is_the_right_one(cloud: Cloud) -> None:
    gone, archived = cloud.boot(), cloud.boot()
    cloud.sink.servers.clear()
    cloud.look(GRACE)
    cloud.sink.deleted = {gone}
    cloud.look(GRACE)
    assert holders() == {archived: models.BOUND}


def test_a_conductor_says_at_its_start_that_nova_is_another_one(cloud, caplog) -> None:
    orphans.check_region(cloud.conf)
    assert (errors_of(caplog), cloud.sink.asked) == ("", [])
    one, _other = cloud.boot(), cloud.boot()
    cloud.sink.servers.clear()
    service = ConductorService(cloud.conf)
    service._check_region()
    assert "Nova has none of 2 instances with accelerators" in errors_of(caplog)
    # One is enough, and silence says nothing.
    cloud.sink.servers.add(one)
    service._check_region()
    cloud.sink.servers.clear()
    cloud.sink.status = 503
    service._check_region()
    cloud.sink.stop()
    service._check_region()
    assert errors_of(caplog) == ""


def test_a_nova_that_is_off_or_of_another_region_than_placement_is_not_asked(cloud, caplog) -> None:
    cloud.boot()
    cloud.conf.set_override(INTERVAL, 0, group="conductor")
    assert (cloud.look(GRACE), cloud.sink.asked) == (False, [])
    cloud.conf.clear_override(INTERVAL, group="conductor")
    cloud.conf.set_override("region_name", "RegionOne", group="placement")
    cloud.conf.set_override("region_name", "RegionTwo", group="nova")
    # With endpoint_override nobody looks for a region.
    assert cloud.look(INTERVAL)
    cloud.conf.clear_override("endpoint_override", group="nova")
    cloud.sink.asked.clear()
    for _ in range(2):
        assert not cloud.look(GRACE)
    orphans.check_region(cloud.conf)
    assert "region_name is RegionTwo, and [placement] region_name is RegionOne" in errors_of(caplog)
    # Nor is one that is not configured.
    cloud.conf.clear_override("region_name", group="nova")
    cloud.conf.clear_override("auth_type", group="nova")
    assert not cloud.look(GRACE)
    assert cloud.sink.asked == []


@pytest.mark.every_database
def test_no_more_are_released_at_a_time_than_permitted(cloud, caplog) -> None:
    cloud.conf.set_override("max_instance_releases", 1, group="conductor")
    stays, *_ = (cloud.boot() for _ in range(4))
    cloud.sink.servers = {stays}
    cloud.look(INTERVAL)
    assert cloud.held_back() == 0
    for left, said in ((3, "2 more instances"), (2, "1 more instances"), (1, "")):
        assert cloud.look(GRACE)
        assert len(holders()) == left
        assert cloud.held_back() == left - 1
        assert said in errors_of(caplog)
    assert holders() == {stays: models.BOUND}


@pytest.mark.every_database
def test_rounds_that_are_tried_again_release_no_more(cloud: Cloud) -> None:
    cloud.conf.set_override("max_instance_releases", 2, group="conductor")
    stays, *gone = (cloud.boot() for _ in range(4))
    cloud.sink.servers = {stays}
    cloud.look(INTERVAL)
    cloud.sink.silent = {gone[1]}
    for after in (GRACE, None, None):
        cloud.look_in_vain(after)
        # The next attempt, and one that something else wants, ask for all of them again.
        with db.writer() as session:
            db.update(session, models.Arq, instance_asked_ms=0)
            work.want(session, work.INSTANCES, [orphans.KEY])
    cloud.sink.silent.clear()
    assert cloud.look()
    assert len(holders()) == 2
    assert cloud.held_back() == 1


def test_an_instance_that_nova_finds_again_has_the_whole_grace_before_it(cloud: Cloud) -> None:
    instance = cloud.boot()
    (before,) = (arq.updated_at for arq in service.list_arqs(cloud.ctx))
    for _ in range(3):
        cloud.sink.servers.clear()
        cloud.look(INTERVAL)
        cloud.sink.servers.add(instance)
        cloud.look(GRACE)
    cloud.sink.servers.clear()
    cloud.look(INTERVAL)
    assert holders() == {instance: models.BOUND}
    assert [arq.updated_at for arq in service.list_arqs(cloud.ctx)] == [before]


def test_any_other_answer_says_nothing(cloud: Cloud) -> None:
    instance = cloud.boot()
    cloud.sink.servers.clear()
    for status in (200, 400, 401, 403, 404, 429, 500, 503):
        # Without the document that Nova would send: a balancer in front of it may answer 404.
        cloud.sink.status = status
        for _ in range(3):
            assert cloud.look(GRACE)
        assert holders() == {instance: models.BOUND}, status


def test_silence_says_nothing(cloud: Cloud) -> None:
    instance = boots.ask(cloud.ctx)
    # Before there is a connection that is kept.
    cloud.sink.stop()
    for _ in range(3):
        cloud.look_in_vain()
    assert holders() == {instance: models.BOUND}


def test_silence_about_one_instance_holds_up_no_other(cloud: Cloud) -> None:
    """As where the cell of its server hangs."""
    silent = cloud.boot()
    cloud.boot()
    stays = cloud.boot()
    cloud.sink.servers = {stays}
    cloud.look(INTERVAL)
    cloud.sink.silent = {silent}
    cloud.look_in_vain()
    cloud.look()
    assert holders() == {silent: models.BOUND, stays: models.BOUND}

    # Silence does not say that the instance is there either.
    cloud.sink.silent.clear()
    assert cloud.look(INTERVAL)
    assert holders() == {stays: models.BOUND}


def test_who_does_not_see_all_projects_releases_nothing(cloud: Cloud) -> None:
    instance = cloud.boot()
    cloud.sink.servers.clear()
    cloud.sink.sees_all = False
    with pytest.raises(nova.MayNotLook, match="role admin"):
        cloud.look(GRACE)
    # Some may list what they may not show.
    cloud.sink.sees_all = True
    cloud.sink.hidden = {instance}
    for _ in range(3):
        engine.make_due()
        with db.writer() as session:
            db.update(session, models.Work, owner=None)
        cloud.look(GRACE)
    assert holders() == {instance: models.BOUND}


@pytest.mark.every_database
def test_each_instance_is_asked_for_once_in_an_interval_by_one_conductor(cloud: Cloud) -> None:
    known = [models.new_uuid() for _ in range(150)]
    cloud.sink.servers.update(known[10:])
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
        for _ in pool.map(orphans.want_check, [cloud.conf] * 8):
            pass
    only = cloud.item()
    assert only is not None
    assert cloud.item() is None
    orphans.want_check(cloud.conf)
    orphans.check_instances(cloud.conf, only)
    assert work.finish(only)

    assert not cloud.look()
    asked = [path.removeprefix("/servers/") for path in cloud.sink.asked if path != "/servers"]
    assert sorted(asked) == sorted(known)
    assert len(holders()) == 150
    cloud.look(GRACE)
    assert holders().keys() == set(known[10:])


def test_a_conductor_asks_by_itself(site, sink, ctx) -> None:
    site.start()
    stays, instance = models.new_uuid(), models.new_uuid()
    sink.servers.add(stays)
    for one in (stays, instance):
        boots.bind(ctx, boots.arqs(ctx), one, device_rp_uuid=RP)
    until(lambda: holders() == {stays: models.BOUND, instance: models.BOUND})
    let_seconds_pass(site.conf.conductor.instance_audit_interval + 1)
    until(lambda: sink.asked)
    until(site.idle)
    let_seconds_pass(site.conf.conductor.instance_grace + 1)
    until(lambda: holders() == {stays: models.BOUND})
