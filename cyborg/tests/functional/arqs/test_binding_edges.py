# SPDX-License-Identifier: Apache-2.0
"""What binding and release bear at their edges, on every database."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, rpc, work
from cyborg.arqs import binding, service
from cyborg.common.reasons import Reason
from cyborg.db import models
from cyborg.handles import host_steps, release
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.states import arq_states
from cyborg.tests import boots, engine, hosts
from cyborg.tests.at_once import at_once
from cyborg.tests.counted_statements import SqlCounter

CountSql = Callable[[], contextlib.AbstractContextManager[SqlCounter]]

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]


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


def test_an_identical_bind_may_be_repeated_beside_a_new_one(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(hosts.card())
    first, second = boots.arqs(ctx, 2)
    instance = models.new_uuid()
    boots.bind(ctx, [first, second], instance)
    engine.drain(conf)
    binding.request_changes(ctx, {}, [second])
    boots.bind(ctx, [first, second], instance)
    engine.drain(conf)
    assert boots.states(ctx) == {first: models.BOUND, second: models.BOUND}


def test_the_budget_of_a_bind_whose_handles_are_prepared_on_many_providers(
    ctx: context.RequestContext, count_sql: CountSql
) -> None:
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


def test_a_reason_is_kept_whatever_the_driver_quotes(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(hosts.card(program_mode="dynamic"))
    (uuid,) = boots.arqs(ctx)
    boots.bind(ctx, [uuid], models.new_uuid())
    with db.writer() as session:
        arq = session.scalars(sa.select(models.Arq)).one()
        end = arq_states.BindEnd(arq, Reason("odd", "firmware: \0 \udcff"))
        assert arq_states.end_binds(session, [end])
    assert service.get_arq(ctx, uuid).state_reason == "firmware: \\x00 \\udcff"


def test_a_conductor_whose_lease_is_lost_gives_up_no_bind(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.apply(hosts.card(prepares=True))
    boots.bind(ctx, boots.arqs(ctx), models.new_uuid())
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


def test_a_device_comes_back_while_its_last_guest_goes(
    ctx: context.RequestContext, conf: cfg.ConfigOpts, database: sa.Engine
) -> None:
    hosts.apply(hosts.card(handles=[1]))
    instance = models.new_uuid()
    boots.bind(ctx, boots.arqs(ctx), instance)
    engine.drain(conf)
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
