# SPDX-License-Identifier: Apache-2.0
"""Binding and release, from the recorded request to the event, on every database."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, profiles
from cyborg.arqs import binding, service
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import release
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.policy.enforcer import Enforcer
from cyborg.tests import boots, engine, hosts
from cyborg.tests.counted_statements import SqlCounter
from cyborg.tests.novasink import NovaSink

CountSql = Callable[[], contextlib.AbstractContextManager[SqlCounter]]

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]


def test_a_batch_is_bound_and_announced_in_one_event_request(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, sink: NovaSink
) -> None:
    hosts.apply(hosts.card(program_mode="dynamic"))
    uuids, instance = boots.arqs(ctx, 3), models.new_uuid()
    boots.bind(ctx, uuids, instance)
    assert set(boots.states(ctx).values()) == {models.BIND_STARTED}
    engine.drain(conf)
    assert set(boots.states(ctx).values()) == {models.BOUND}
    assert len(set(boots.handles(ctx))) == 3
    (events,) = sink.requests
    assert {(e["name"], e["server_uuid"], e["status"]) for e in events} == {
        ("accelerator-request-bound", instance, "completed")
    }
    assert {event["tag"] for event in events} == set(uuids)
    assert engine.pending() == {}


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("mode", [None, "dynamic"])
def test_the_budget_of_a_bind(
    ctx: context.RequestContext,
    conf: cfg.ConfigOpts,
    sink: NovaSink,
    count_sql: CountSql,
    count: int,
    mode: str | None,
) -> None:
    """By the API alone, and by a conductor."""
    hosts.apply(hosts.card(program_mode=mode))
    engine.drain(conf)
    uuids, instance = boots.arqs(ctx, count), models.new_uuid()
    with count_sql() as counter:
        boots.bind(ctx, uuids, instance)
        engine.drain(conf)
    # Four of them are for the one POST to Nova, and the last look for work finds nothing. A
    # conductor that binds may look for the results before, too. One writes the history. However
    # many ARQs a deployable gives handles to, that is written at once.
    limit = 13 if mode is None else 25
    assert len(counter.statements) <= limit, counter.statements
    assert len(sink.requests) == 1


def test_creating_arqs_costs_at_most_four_statements(
    ctx: context.RequestContext, count_sql: CountSql
) -> None:
    groups = [dict(boots.GROUP)] * 6
    profiles.create_profile(name="six", groups=groups, description=None, uuid=None)
    with count_sql() as counter:
        service.create(ctx, "six")
    assert len(counter.statements) <= 4, counter.statements


def test_32_threads_for_the_last_8_handles(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, sink: NovaSink
) -> None:
    hosts.apply(hosts.device("a", hosts.deployable(boots.NAME, range(8))))
    uuids = boots.arqs(ctx, 32)
    ready = threading.Barrier(32)
    faults: list[BaseException] = []

    def boot(uuid: str) -> None:
        try:
            ready.wait()
            boots.bind(ctx, [uuid], models.new_uuid())
            engine.drain(conf)
        except BaseException as exc:  # noqa: BLE001 - shown by the test
            faults.append(exc)

    threads = [threading.Thread(target=boot, args=[uuid]) for uuid in uuids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    engine.make_due()
    engine.drain(conf)
    arqs = service.list_arqs(ctx)
    assert Counter(a.state for a in arqs) == {models.BOUND: 8, models.BIND_FAILED: 24}
    assert len(set(boots.handles(ctx))) == 8
    reasons = {arq.state_reason for arq in arqs if arq.state == models.BIND_FAILED}
    assert reasons == {f"Provider {boots.RP} has no free attach handle."}
    assert sink.events == {
        arq.uuid: "completed" if arq.state == models.BOUND else "failed" for arq in arqs
    }
    assert engine.pending() == {}


def test_an_identical_repeat_changes_nothing_and_sends_the_event_again(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, sink: NovaSink
) -> None:
    hosts.apply(hosts.device("a", hosts.deployable(boots.NAME)))
    uuids, instance = boots.arqs(ctx), models.new_uuid()
    for _ in range(2):
        boots.bind(ctx, uuids, instance)
        boots.bind(ctx, uuids, instance)
        before = engine.drain(conf)
        assert before
    assert len(boots.handles(ctx)) == 1
    assert len(sink.requests) == 2


def test_other_values_for_a_bound_arq_are_refused(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(hosts.device("a", hosts.deployable(boots.NAME)))
    uuids = boots.arqs(ctx)
    boots.bind(ctx, uuids, models.new_uuid())
    with pytest.raises(errors.Invalid, match="unbind it first"):
        boots.bind(ctx, uuids, models.new_uuid())


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"hostname": "elsewhere"}, errors.Invalid, "hostname"),
        ({"device_rp_uuid": models.new_uuid()}, errors.NotFound, "Deployable not found"),
        ({"device_rp_uuid": provider_uuid("host-1_gpu")}, errors.Invalid, "it offers PGPU"),
        ({"device_rp_uuid": provider_uuid("host-1_other")}, errors.Invalid, "CUSTOM_FAKE_DEVICE"),
        ({"device_rp_uuid": provider_uuid("host-1_off")}, errors.Conflict, "disabled"),
        ({"device_rp_uuid": provider_uuid("host-2_a")}, errors.Invalid, "not on that host"),
    ],
)
def test_a_wrong_target_is_refused_and_nothing_is_written(
    ctx: context.RequestContext,
    conf: cfg.ConfigOpts,
    changes: dict[str, str],
    error: type[errors.CyborgError],
    sentence: str,
) -> None:
    hosts.apply(
        hosts.device("a", hosts.deployable(boots.NAME)),
        hosts.device("g", hosts.deployable("host-1_gpu", resource_class="PGPU")),
        hosts.device("o", hosts.deployable("host-1_other", traits=())),
        hosts.device("d", hosts.deployable("host-1_off")),
    )
    hosts.apply(hosts.device("a", hosts.deployable("host-2_a")), host="host-2")
    with db.writer() as session:
        disabled = sa.select(models.Deployable.device_id).where(
            models.Deployable.name == "host-1_off"
        )
        device_id = session.scalars(disabled).one()
        db.update(session, models.Device, models.Device.id == device_id, status="maintaining")
    engine.drain(conf)
    uuids, instance = boots.arqs(ctx, 2), models.new_uuid()
    targets = {uuids[0]: boots.target(instance), uuids[1]: boots.target(instance, **changes)}
    with pytest.raises(error, match=sentence):
        binding.request_changes(ctx, targets, [])
    assert set(boots.states(ctx).values()) == {models.INITIAL}
    assert engine.pending() == {}


def test_an_unknown_arq_in_a_batch_binds_none(ctx: context.RequestContext) -> None:
    hosts.apply(hosts.device("a", hosts.deployable(boots.NAME)))
    uuids = boots.arqs(ctx)
    with pytest.raises(errors.NotFound, match="ExtArq not found"):
        boots.bind(ctx, [*uuids, models.new_uuid()], models.new_uuid())
    assert set(boots.states(ctx).values()) == {models.INITIAL}


def test_eight_requests_of_one_arq_each_for_one_instance(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(hosts.device("a", hosts.deployable(boots.NAME, range(8))))
    uuids, instance = boots.arqs(ctx, 8), models.new_uuid()
    outcomes: Counter[str] = Counter()
    ready = threading.Barrier(8)

    def patch(uuid: str) -> None:
        ready.wait()
        try:
            boots.bind(ctx, [uuid], instance)
        except errors.Invalid as exc:
            outcomes["refused" if "already holds ARQs" in str(exc) else str(exc)] += 1
        else:
            outcomes["accepted"] += 1

    threads = [threading.Thread(target=patch, args=[uuid]) for uuid in uuids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {"accepted": 1, "refused": 7}


def test_unbind_frees_the_handle_for_the_next(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(hosts.device("a", hosts.deployable(boots.NAME, range(1))))
    first, second = boots.arqs(ctx, 2)
    boots.bind(ctx, [first], models.new_uuid())
    engine.drain(conf)
    binding.request_changes(ctx, {}, [first])
    binding.request_changes(ctx, {}, [first])
    boots.bind(ctx, [second], models.new_uuid())
    engine.drain(conf)
    arqs = {arq.uuid: arq for arq in service.list_arqs(ctx)}
    assert (arqs[first].state, arqs[first].consumer_uuid) == (models.UNBOUND, None)
    assert arqs[first].hostname is arqs[first].device_rp_uuid is None
    assert arqs[second].state == models.BOUND
    release.delete_arqs(ctx, [second])
    boots.bind(ctx, [first], models.new_uuid())
    engine.drain(conf)
    assert boots.states(ctx) == {first: models.BOUND}


def test_deleting_before_the_bind_leaves_nothing(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, sink: NovaSink
) -> None:
    hosts.apply(hosts.card(program_mode="dynamic"))
    uuids, instance = boots.arqs(ctx, 2), models.new_uuid()
    boots.bind(ctx, uuids, instance)
    release.delete_instance_arqs(ctx, instance)
    release.delete_instance_arqs(ctx, instance)
    engine.drain(conf)
    assert boots.states(ctx) == {}
    assert sink.requests == []
    assert engine.pending() == {}


def test_deleting_some_of_which_one_is_unknown_deletes_the_others(
    ctx: context.RequestContext,
) -> None:
    uuids = boots.arqs(ctx, 2)
    with pytest.raises(errors.NotFound):
        release.delete_arqs(ctx, [*uuids, models.new_uuid()])
    assert boots.states(ctx) == {}


def test_a_bound_arq_is_not_deleted_without_a_service_token(
    ctx: context.RequestContext, enforcer: Enforcer, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(hosts.device("a", hosts.deployable(boots.NAME)))
    bound, free = boots.arqs(ctx, 2)
    boots.bind(ctx, [bound], models.new_uuid())
    owner = context.RequestContext(enforcer=enforcer, project_id="project-1", roles=["member"])
    with pytest.raises(errors.Forbidden, match="Use the Compute"):
        release.delete_arqs(owner, [free, bound])
    with pytest.raises(errors.Forbidden, match="requires a service token"):
        release.delete_instance_arqs(owner, models.new_uuid())
    with pytest.raises(errors.Forbidden, match="requires a service token"):
        boots.bind(owner, [free], models.new_uuid())
    assert set(boots.states(ctx)) == {bound, free}


def test_another_projects_arqs_do_not_exist(
    ctx: context.RequestContext, tenant: context.RequestContext
) -> None:
    hosts.apply(hosts.device("a", hosts.deployable(boots.NAME)))
    uuids, instance = boots.arqs(ctx), models.new_uuid()
    assert service.list_arqs(tenant) == []
    for attempt in (
        lambda: service.get_arq(tenant, uuids[0]),
        lambda: boots.bind(tenant, uuids, instance),
        lambda: release.delete_arqs(tenant, uuids),
    ):
        with pytest.raises(errors.NotFound):
            attempt()
    boots.bind(ctx, uuids, instance)
    release.delete_instance_arqs(tenant, instance)
    assert boots.states(ctx) == {uuids[0]: models.BOUND}


def test_a_device_disabled_after_the_request_still_serves_it(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(hosts.card(program_mode="dynamic"))
    uuids = boots.arqs(ctx)
    boots.bind(ctx, uuids, models.new_uuid())
    with db.writer() as session:
        db.update(session, models.Device, status="maintaining")
    engine.drain(conf)
    assert boots.states(ctx) == {uuids[0]: models.BOUND}


def test_a_provider_that_vanishes_before_the_bind_fails_it(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, sink: NovaSink
) -> None:
    hosts.apply(hosts.card(program_mode="dynamic"))
    uuids = boots.arqs(ctx)
    boots.bind(ctx, uuids, models.new_uuid())
    hosts.apply()
    engine.drain(conf)
    (arq,) = service.list_arqs(ctx)
    assert (arq.state, arq.state_reason) == (
        models.BIND_FAILED,
        f"Provider {boots.RP} is gone from its host.",
    )
    assert sink.events == {uuids[0]: "failed"}


def test_a_resource_class_that_changes_before_the_bind_fails_it(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, sink: NovaSink
) -> None:
    hosts.apply(hosts.card(program_mode="dynamic"))
    uuids = boots.arqs(ctx)
    boots.bind(ctx, uuids, models.new_uuid())
    hosts.apply(hosts.card(program_mode="dynamic", resource_class="CUSTOM_B"))
    engine.drain(conf)
    (arq,) = service.list_arqs(ctx)
    assert (arq.state, arq.handle_uuid) == (models.BIND_FAILED, None)
    assert arq.private_reason == f"Provider {boots.RP} changed: it offers CUSTOM_B, not FPGA."
    assert sink.events == {uuids[0]: "failed"}


def test_a_held_handle_that_vanished_goes_when_its_arq_does(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(hosts.device("a", hosts.deployable(boots.NAME)))
    uuids = boots.arqs(ctx)
    boots.bind(ctx, uuids, models.new_uuid())
    engine.drain(conf)
    hosts.apply()
    release.delete_arqs(ctx, uuids)
    with db.reader() as session:
        assert session.scalars(sa.select(models.Device)).all() == []


def test_resolved_is_asked_for(ctx: context.RequestContext, conf: cfg.ConfigOpts) -> None:
    hosts.apply(hosts.card(program_mode="dynamic"))
    uuids, instance = boots.arqs(ctx, 2), models.new_uuid()
    boots.bind(ctx, uuids, instance)
    with pytest.raises(errors.Unresolved):
        service.list_arqs(ctx, instance_uuid=instance, only_resolved=True)
    assert service.list_arqs(ctx, only_resolved=True) == []
    engine.drain(conf)
    found = service.list_arqs(ctx, instance_uuid=instance, only_resolved=True)
    assert {arq.uuid for arq in found} == set(uuids)
