# SPDX-License-Identifier: Apache-2.0
"""Binding and release, from the recorded request to the event, on every database."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, profiles, rpc, work
from cyborg.arqs import binding, service
from cyborg.common import errors
from cyborg.common.reasons import Reason
from cyborg.db import models
from cyborg.handles import host_steps, release
from cyborg.hosts import flags
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.states import arq_states
from cyborg.tests import boots, engine, hosts
from cyborg.tests.at_once import at_once
from cyborg.tests.counted_statements import SqlCounter

CountSql = Callable[[], contextlib.AbstractContextManager[SqlCounter]]

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("mode", [None, "dynamic"])
def test_the_budget_of_a_bind(ctx, conf, sink, count_sql, count: int, mode: str | None) -> None:
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


def test_creating_arqs_costs_at_most_four_statements(ctx, count_sql) -> None:
    groups = [dict(boots.GROUP)] * 6
    profiles.create_profile(name="six", groups=groups, description=None, uuid=None)
    with count_sql() as counter:
        service.create(ctx, "six")
    assert len(counter.statements) <= 4, counter.statements


#: What is wrong with a target, and how it is refused.
WRONG: tuple[tuple[dict[str, str], type[errors.CyborgError], str], ...] = (
    ({"hostname": "elsewhere"}, errors.Invalid, "hostname"),
    ({"device_rp_uuid": models.new_uuid()}, errors.NotFound, "Deployable not found"),
    ({"device_rp_uuid": provider_uuid("host-1_gpu")}, errors.Invalid, "it offers PGPU"),
    ({"device_rp_uuid": provider_uuid("host-1_other")}, errors.Invalid, "CUSTOM_FAKE_DEVICE"),
    ({"device_rp_uuid": provider_uuid("host-1_off")}, errors.Conflict, "disabled"),
    ({"device_rp_uuid": provider_uuid("host-2_a")}, errors.Invalid, "not on that host"),
)


def test_a_wrong_target_is_refused_and_nothing_is_written(ctx, conf) -> None:
    hosts.apply(
        hosts.card("a"),
        hosts.card("gpu", resource_class="PGPU"),
        hosts.card("other", traits=()),
        hosts.card("off"),
    )
    hosts.apply(hosts.device("a", hosts.deployable("host-2_a")), host="host-2")
    (off,) = (row.device.uuid for row in hosts.deployables() if row.name == "host-1_off")
    flags.disable_device(off)
    engine.drain(conf)
    uuids, instance = boots.arqs(ctx, 2), models.new_uuid()
    for changes, error, sentence in WRONG:
        targets = {uuids[0]: boots.target(instance), uuids[1]: boots.target(instance, **changes)}
        with pytest.raises(error, match=sentence):
            binding.request_changes(ctx, targets, [])
        assert set(boots.states(ctx).values()) == {models.INITIAL}
        assert engine.pending() == {}


def test_what_is_unknown_or_bound_is_refused_beside_others(ctx: context.RequestContext) -> None:
    hosts.apply(hosts.card())
    (uuid,) = boots.arqs(ctx)
    with pytest.raises(errors.NotFound, match="ExtArq not found"):
        boots.bind(ctx, [uuid, models.new_uuid()], models.new_uuid())
    assert boots.states(ctx) == {uuid: models.INITIAL}
    boots.bind(ctx, [uuid], models.new_uuid())
    with pytest.raises(errors.Invalid, match="unbind it first"):
        boots.bind(ctx, [uuid], models.new_uuid())
    # Of some that are deleted one may be unknown: the others are deleted.
    with pytest.raises(errors.NotFound):
        release.delete_arqs(ctx, [*boots.arqs(ctx, 2), models.new_uuid()])
    assert boots.states(ctx) == {uuid: models.BOUND}


def test_unbind_frees_the_handle_for_the_next(ctx, conf) -> None:
    hosts.apply(hosts.card("a", range(1)))
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


def test_a_bound_arq_is_not_deleted_without_a_service_token(ctx, enforcer, conf) -> None:
    hosts.apply(hosts.card())
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


def test_another_projects_arqs_do_not_exist(ctx, tenant) -> None:
    hosts.apply(hosts.card())
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


@pytest.mark.parametrize(
    ("later", "public", "private"),
    [
        (None, "is gone from its host.", None),
        ({"resource_class": "CUSTOM_B"}, "changed.", "changed: it offers CUSTOM_B, not FPGA."),
        ({"unhealthy": "It is hot"}, "is unhealthy.", "is unhealthy: It is hot."),
    ],
    ids=["gone", "class", "unhealthy"],
)
def test_what_changes_before_the_bind_fails_it(ctx, conf, sink, later, public, private) -> None:
    hosts.apply(hosts.card(program_mode="dynamic"))
    uuids = boots.arqs(ctx)
    boots.bind(ctx, uuids, models.new_uuid())
    hosts.apply(*([] if later is None else [hosts.card(program_mode="dynamic", **later)]))
    engine.drain(conf)
    (arq,) = service.list_arqs(ctx)
    assert (arq.state, arq.handle_uuid) == (models.BIND_FAILED, None)
    assert arq.state_reason == f"Provider {boots.RP} {public}"
    assert arq.private_reason == (private and f"Provider {boots.RP} {private}")
    assert sink.events == {uuids[0]: "failed"}


def test_resolved_is_asked_for(ctx: context.RequestContext, conf: cfg.ConfigOpts) -> None:
    hosts.apply(hosts.card(program_mode="dynamic"))
    instance = boots.ask(ctx, 2)
    with pytest.raises(errors.Unresolved):
        service.list_arqs(ctx, instance_uuid=instance, only_resolved=True)
    assert service.list_arqs(ctx, only_resolved=True) == []
    # A device that is disabled after the request still serves it.
    with db.writer() as session:
        db.update(session, models.Device, status="maintaining")
    engine.drain(conf)
    found = service.list_arqs(ctx, instance_uuid=instance, only_resolved=True)
    assert {arq.uuid: arq.state for arq in found} == boots.states(ctx)
    assert [arq.state for arq in found] == [models.BOUND] * 2


def test_the_last_two_handles_of_a_vanished_device_are_released_at_once(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, database: sa.Engine
) -> None:
    hosts.apply(hosts.card("a", range(2)), hosts.card("b"))
    instances = [models.new_uuid(), models.new_uuid()]
    for uuid, instance in zip(boots.arqs(ctx, 2), instances, strict=True):
        boots.bind(ctx, [uuid], instance)
    engine.drain(conf)
    hosts.apply(hosts.card("b"))
    meeting = threading.Barrier(2)

    def meet(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
        """Let both have deleted their handle before either looks what is left, if they can."""
        if statement.startswith("DELETE FROM attach_handles"):
            with contextlib.suppress(threading.BrokenBarrierError):
                meeting.wait(0.5)

    sa.event.listen(database, "after_cursor_execute", meet)
    at_once(*[functools.partial(release.delete_instance_arqs, ctx, each) for each in instances])
    with db.reader() as session:
        assert list(session.scalars(sa.select(models.Deployable.name))) == ["host-1_b"]
        assert len(list(session.scalars(sa.select(models.Device.id)))) == 1


def test_an_identical_bind_may_be_repeated_beside_a_new_one(ctx, conf) -> None:
    hosts.apply(hosts.card())
    first, second = boots.arqs(ctx, 2)
    instance = models.new_uuid()
    boots.bind(ctx, [first, second], instance)
    engine.drain(conf)
    binding.request_changes(ctx, {}, [second])
    boots.bind(ctx, [first, second], instance)
    engine.drain(conf)
    assert boots.states(ctx) == {first: models.BOUND, second: models.BOUND}


def test_the_budget_of_a_bind_whose_handles_are_prepared_on_many_providers(ctx, count_sql) -> None:
    letters, instance = "abcdef", models.new_uuid()
    hosts.apply(*[hosts.card(letter, prepares=True) for letter in letters])
    targets = {
        uuid: boots.target(instance, device_rp_uuid=provider_uuid(f"host-1_{letter}"))
        for uuid, letter in zip(boots.arqs(ctx, len(letters)), letters, strict=True)
    }
    with count_sql() as counter:
        binding.request_changes(ctx, targets, [])
    item = engine.take("test", 30.0, [work.BIND])
    assert item is not None
    with count_sql() as more:
        binding.bind_instance(item)
    statements = counter.statements + more.statements
    assert len(statements) <= 10 + len(letters), statements
    assert len(boots.handles(ctx)) == len(letters)


def test_a_reason_is_kept_whatever_the_driver_quotes(ctx, conf) -> None:
    hosts.apply(hosts.card(program_mode="dynamic"))
    (uuid,) = boots.arqs(ctx)
    boots.bind(ctx, [uuid], models.new_uuid())
    with db.writer() as session:
        arq = session.scalars(sa.select(models.Arq)).one()
        end = arq_states.BindEnd(arq, Reason("odd", "firmware: \0 \udcff"))
        assert arq_states.end_binds(session, [end])
    assert service.get_arq(ctx, uuid).state_reason == "firmware: \\x00 \\udcff"


def test_a_conductor_whose_lease_is_lost_gives_up_no_bind(ctx, conf, monkeypatch) -> None:
    hosts.apply(hosts.card(prepares=True))
    boots.ask(ctx)
    bind = engine.take("first", 30.0, [work.BIND])
    assert bind is not None
    binding.bind_instance(bind)
    with db.writer() as session:
        db.update(session, models.Arq, bind_started_ms=1)
    step = engine.take("second", 30.0, [work.HOST_STEP])
    assert step is not None

    def lose_the_lease(*_arguments: object) -> None:
        step.lose()
        raise rpc.HostUnreachable("the agent does not answer")

    monkeypatch.setattr(rpc, "run_host_step", lose_the_lease)
    with pytest.raises(work.LeaseLost):
        host_steps.run(conf, step)
    assert set(boots.states(ctx).values()) == {models.BIND_STARTED}


def test_a_device_comes_back_while_its_last_guest_goes(ctx, conf, database) -> None:
    hosts.apply(hosts.card(handles=[1]))
    instance = boots.boot(conf, ctx)
    hosts.apply()
    leaving = threading.Thread(target=release.delete_instance_arqs, args=(ctx, instance))

    def leave(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
        """Let the guest go between the report's look at the rows and its change of them."""
        if "FROM attach_handles" in statement and leaving.ident is None:
            leaving.start()
            leaving.join(0.5)  # on SQLite it has to wait for the report

    sa.event.listen(database, "after_cursor_execute", leave)
    hosts.apply(hosts.card(handles=[1]))
    leaving.join()
    with db.reader() as session:
        found = session.scalars(sa.select(models.AttachHandle)).all()
        assert [handle.missing for handle in found] == [False]
