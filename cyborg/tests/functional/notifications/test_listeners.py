# SPDX-License-Identifier: Apache-2.0
"""What listeners hear of ARQs, devices and hosts, and what becomes of it while things fail."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from oslo_config import cfg
from oslo_context import context as oslo_context

from cyborg import db, liveness, notifications, profiles, quotas
from cyborg.arqs import binding, service
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import giving_up, release
from cyborg.hosts import draining, flags
from cyborg.notifications import notices, users
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts, listening, messages
from cyborg.tests.counted_statements import SqlCounter
from cyborg.tests.listening import Ear
from cyborg.tests.service import until

pytestmark = pytest.mark.usefixtures("database")

CountSql = Callable[[], contextlib.AbstractContextManager[SqlCounter]]


@pytest.fixture(params=messages.TRANSPORTS)
def ear(request: pytest.FixtureRequest, conf: cfg.ConfigOpts) -> Iterator[Ear]:
    with listening.ear(conf, request.param) as one:
        yield one


def test_the_life_of_a_request_is_heard_in_order(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, ear: Ear
) -> None:
    hosts.apply(hosts.device("a", hosts.deployable(boots.NAME)))
    (arq,) = boots.arqs(ctx)
    instance = models.new_uuid()
    boots.bind(ctx, [arq], instance)
    engine.drain(conf)
    binding.request_changes(ctx, {}, [arq])
    boots.bind(ctx, [arq], models.new_uuid(), device_rp_uuid=boots.RP)
    engine.drain(conf)
    release.delete_arqs(ctx, [arq])
    listening.send(conf)

    until(lambda: len(ear.heard) == 6)
    assert ear.events == [
        "device.create.end",
        "accelerator_request.create.end",
        "accelerator_request.bind.end",
        "accelerator_request.unbind.end",
        "accelerator_request.bind.end",
        "accelerator_request.delete.end",
    ]
    assert {one.publisher for one in ear.heard} == {"cyborg-conductor:host-1"}
    device, created, bound, unbound, _, deleted = (one.data for one in ear.heard)
    assert (created["old_state"], created["state"]) == (None, models.INITIAL)
    assert bound["state"] == models.BOUND
    assert bound["instance_uuid"] == unbound["instance_uuid"] == instance
    assert bound["attach_handle_uuid"] == unbound["attach_handle_uuid"] is not None
    assert bound["device_uuid"] == deleted["device_uuid"] == device["uuid"]
    assert (deleted["old_state"], deleted["state"]) == (models.BOUND, models.DELETING)
    assert len({one.data["notification_id"] for one in ear.heard}) == 6
    times = [one.data["occurred_at"] for one in ear.heard]
    assert times == sorted(times)
    assert listening.recorded() == []


def test_a_bind_that_fails_is_heard_with_its_reason(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, ear: Ear
) -> None:
    hosts.apply(hosts.device("a", hosts.deployable(boots.NAME, range(1))))
    boots.bind(ctx, boots.arqs(ctx, 2), models.new_uuid())
    engine.drain(conf)
    listening.send(conf)

    (failed,) = until(lambda: [o for o in ear.heard if o.event == "accelerator_request.bind.error"])
    assert failed.priority == "ERROR"
    assert failed.data["state_reason"] == f"Provider {boots.RP} has no free attach handle."
    assert failed.data["attach_handle_uuid"] is None


@pytest.mark.usefixtures("announcing")
def test_what_does_not_commit_is_not_announced(ctx: context.RequestContext) -> None:
    woken: list[str] = []
    notifications.wake_after_commit(lambda: woken.append("up"))
    with contextlib.suppress(ZeroDivisionError), db.writer() as session:
        host = models.Host(name="h", node="h", driver_errors={}, created_at=models.utcnow())
        notifications.announce(session, [notices.of_host(notices.HOST_UP, host)])
        raise ZeroDivisionError
    assert (listening.recorded(), woken) == ([], [])

    uuids = boots.arqs(ctx)
    assert (listening.recorded(), woken) == (["accelerator_request.create.end"], ["up"])
    with pytest.raises(errors.NotFound):
        boots.bind(ctx, uuids, models.new_uuid())
    assert listening.recorded() == ["accelerator_request.create.end"]


@pytest.mark.every_database
@pytest.mark.usefixtures("announcing")
@pytest.mark.parametrize("count", [1, 4])
def test_the_budget_of_a_bind_that_is_announced(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, count_sql: CountSql, count: int
) -> None:
    hosts.apply(hosts.device("a", hosts.deployable(boots.NAME)))
    engine.drain(conf)
    uuids, instance = boots.arqs(ctx, count), models.new_uuid()
    with count_sql() as counter:
        boots.bind(ctx, uuids, instance)
        engine.drain(conf)
    told = [text for text in counter.statements if "notifications" in text]
    assert len(told) == 1, told
    # As without announcements: see the test of binding.
    assert len(counter.statements) <= 8 + 2 * count + 4 * 2 + 2, counter.statements


def test_where_nobody_is_to_be_told_nothing_is_recorded(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, count_sql: CountSql
) -> None:
    with count_sql() as counter:
        hosts.apply(hosts.device("a", hosts.deployable(boots.NAME)))
        boots.bind(ctx, boots.arqs(ctx), models.new_uuid())
        engine.drain(conf)
    assert [text for text in counter.statements if "notifications" in text] == []


def test_the_request_that_caused_it_is_named(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    with listening.ear(conf, "memory") as ear:
        asked = oslo_context.RequestContext(global_request_id=f"req-{uuid.uuid4()}").global_id
        boots.arqs(ctx)
        listening.send(conf)
        until(lambda: ear.heard)
    assert ear.heard[0].data["request_id"] == asked


def test_devices_and_hosts_are_heard_of(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    card = hosts.deployable(boots.NAME)
    with listening.ear(conf, "memory") as ear:
        hosts.apply(hosts.device("a", card))
        hosts.apply(hosts.device("a", card, unhealthy="too hot"))
        hosts.apply(hosts.device("a", card))
        with db.reader() as session:
            device = session.scalars(sa.select(models.Device.uuid)).one()
        for _ in range(2):
            flags.disable_device(device)
        flags.enable_device(device)
        uuids = boots.arqs(ctx)
        boots.bind(ctx, uuids, models.new_uuid())
        engine.drain(conf)
        hosts.apply()
        hosts.apply(hosts.device("a", card))
        release.delete_arqs(ctx, uuids)
        hosts.apply()
        with db.writer() as session:
            db.update(session, models.Host, last_seen_ms=0)
        liveness.mark_hosts_down(conf)
        liveness.mark_hosts_down(conf)
        hosts.apply()
        listening.send(conf)
        until(lambda: len(ear.heard) == 13)
    # Each priority has a queue of its own, in which the order is kept.
    told = {
        priority: [
            one.event
            for one in ear.heard
            if one.priority == priority and not one.event.startswith("accelerator_request")
        ]
        for priority in ("INFO", "WARN", "ERROR")
    }
    assert told == {
        "INFO": [
            "device.create.end",
            "device.healthy",
            "device.disable.end",
            "device.enable.end",
            "device.found",
            "device.delete.end",
            "host.up",
        ],
        "WARN": ["device.unhealthy", "device.missing"],
        "ERROR": ["host.down"],
    }
    reasons = {one.event: one.data["unhealthy"] for one in ear.heard if "healthy" in one.event}
    assert reasons == {"device.unhealthy": "too hot", "device.healthy": None}


def test_two_conductors_do_not_send_at_once(conf: cfg.ConfigOpts, announcing: None) -> None:
    with db.writer() as session:
        host = models.Host(name="h", node="h", driver_errors={}, created_at=models.utcnow())
        notifications.announce(session, [notices.of_host(notices.HOST_UP, host)])
    assert [notifications.look(), notifications.look()] == [True, False]
    assert engine.take("one", 30.0, [notifications.KIND]) is not None
    assert engine.take("two", 30.0, [notifications.KIND]) is None


@pytest.mark.every_database
def test_who_is_being_given_a_device_is_named_too(ctx: context.RequestContext) -> None:
    hosts.apply(hosts.card("a", prepares=True))
    (waiting,) = boots.arqs(ctx)
    instance = models.new_uuid()
    boots.bind(ctx, [waiting], instance)
    with db.writer() as session:
        (device,) = session.scalars(sa.select(models.Device)).all()
        notice = notices.of_device(notices.DEVICE_UNHEALTHY, device, "host-1")
        (named,) = users.name(session, [notice])
    assert isinstance(named.payload, notices.DevicePayload)
    assert [each.instance_uuid for each in named.payload.users] == [instance]


def test_owners_are_named_when_their_device_is_not_as_it_was(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    card = hosts.deployable(boots.NAME)
    other = hosts.card("b", range(4, 8))
    hosts.apply(hosts.device("a", card), other)
    bound, _waiting = boots.arqs(ctx, 2)
    instance = models.new_uuid()
    boots.bind(ctx, [bound], instance)
    engine.drain(conf)
    user = {"arq_uuid": bound, "project_id": "project-1", "instance_uuid": instance}
    with listening.ear(conf, "memory") as ear:
        hosts.apply(hosts.device("a", card, unhealthy="It is hot"), other)
        hosts.apply(hosts.device("a", card))
        draining.drain("host-1", "A new fan", 1)
        draining.drain("host-1", "A new fan", 1)
        draining.undrain("host-1", 1)
        draining.undrain("host-1", 1)
        giving_up.release_arq(ctx, bound, force=True)
        draining.drain("host-1", None, 1)
        listening.send(conf)
        until(lambda: len(ear.heard) >= 8)
    # Each priority has a queue of its own.
    assert sorted(ear.events) == [
        "accelerator_request.delete.end",
        "accelerator_request.release.end",
        "device.delete.end",
        "device.healthy",
        "device.unhealthy",
        "host.drain.end",
        "host.drain.end",
        "host.undrain.end",
    ]
    first, second = (one.data for one in ear.heard if one.event == "host.drain.end")
    heard = {one.event: one.data for one in ear.heard}
    assert heard["device.unhealthy"]["users"] == heard["device.healthy"]["users"] == [user]
    assert first["users"] == heard["host.undrain.end"]["users"] == [user]
    assert heard["device.delete.end"]["users"] == second["users"] == []
    released = heard["accelerator_request.release.end"]
    assert {"arq_uuid": released["uuid"]} | {
        name: released[name] for name in ("project_id", "instance_uuid")
    } == user
    assert (released["old_state"], released["state"]) == (models.BOUND, models.DELETING)


def test_a_refusal_by_the_quota_is_heard_though_nothing_was_made(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    with listening.ear(conf, "memory") as ear:
        groups = [dict(boots.GROUP)] * 2
        profiles.create_profile(name="two", groups=groups, description=None)
        with pytest.raises(quotas.QuotaExceeded, match="used 0, limit 1, asked for 2"):
            service.create(ctx, "two", {quotas.REQUESTS: 1})
        listening.send(conf)
        until(lambda: len(ear.heard) == 2)
    (refusal,) = (one.data for one in ear.heard if one.event == "quota.exceeded")
    assert refusal["project_id"] == "project-1"
    over = {"limit_name": quotas.REQUESTS, "used": 0, "limit": 1, "asked": 2}
    assert refusal["exceeded"] == [over]


@pytest.mark.every_database
def test_a_project_that_is_refused_all_the_time_is_told_of_now_and_then(
    ctx: context.RequestContext,
    tenant: context.RequestContext,
    conf: cfg.ConfigOpts,
    count_sql: CountSql,
) -> None:
    groups = [dict(boots.GROUP)] * 2
    profiles.create_profile(name="two", groups=groups, description=None)

    def refuse(who: context.RequestContext) -> None:
        with pytest.raises(quotas.QuotaExceeded):
            service.create(who, "two", {quotas.REQUESTS: 1})

    def told() -> list[str]:
        row = models.Notification
        wanted = row.event_type == notices.QUOTA_EXCEEDED.name
        with db.reader() as session:
            found = session.scalars(sa.select(row.payload).where(wanted).order_by(row.id))
            return [each["cyborg_object.data"]["project_id"] for each in found]

    with listening.ear(conf, "memory"):
        for who in (ctx, ctx, tenant, ctx):
            refuse(who)
        assert told() == ["project-1", "project-2"]
        with count_sql() as sql:
            refuse(ctx)
        writes = ("INSERT INTO notifications", "UPDATE project_locks SET")
        assert not [each for each in sql.statements if each.startswith(writes)]
        lock = models.ProjectLock
        with db.writer() as session:
            old_ms = lock.quota_noticed_ms - quotas.NOTICE_SECONDS * 1000
            db.update(session, lock, lock.project_id == "project-1", quota_noticed_ms=old_ms)
        for who in (ctx, tenant, ctx):
            refuse(who)
        assert told() == ["project-1", "project-2", "project-1"]
