# SPDX-License-Identifier: Apache-2.0
"""Nothing on the way from the request to Active waits for a look that comes by itself."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, rpc, work
from cyborg.allocations import allocation_steps, service, wishes
from cyborg.db import models
from cyborg.handles import host_steps
from cyborg.policy import context
from cyborg.rpc import memory
from cyborg.states import allocation_states as states
from cyborg.tests import callers, engine, hosts, messages

CONSUMER = "c0000000-0000-4000-8000-000000000001"


@pytest.fixture
def ctx(database, placement, enforcer, monkeypatch) -> context.RequestContext:
    """An administrator, where a host prepares each handle."""
    placement.make_provider(hosts.ROOT)
    hosts.apply(hosts.card("a", prepares=True, cleans=True))
    placement.sync()
    monkeypatch.setattr(rpc, "run_host_step", lambda *_given: None)
    return callers.admin(enforcer, project_id="project-1")


def ask(conf: cfg.ConfigOpts, ctx: context.RequestContext, count: int) -> None:
    part = {"groups": [{"resources:FPGA": "1"}], "count": count}
    body = {"consumer": {"uuid": CONSUMER, "type": "PROXY"}, "parts": [part]}
    service.create(conf, ctx, wishes.read(ctx, CONSUMER, body), {})


@pytest.mark.every_database
@pytest.mark.parametrize("count", [1, 3])
def test_the_last_host_step_makes_it_active(conf, ctx, count: int) -> None:
    ask(conf, ctx, count)
    done = [each.partition("/")[0] for each in engine.drain(conf)]
    assert service.get(ctx, CONSUMER).row.state == states.ACTIVE
    assert done == [work.ALLOCATE] + [work.HOST_STEP] * count


def test_a_host_step_that_is_not_the_last_makes_nothing_active(conf, ctx) -> None:
    ask(conf, ctx, 2)
    for kind, handle in ((work.ALLOCATE, allocation_steps.run), (work.HOST_STEP, host_steps.run)):
        item = engine.take("conductor-1", 600, [kind])
        assert item is not None
        handle(conf, item)
    assert service.get(ctx, CONSUMER).row.state == states.BINDING
    engine.drain(conf)
    assert service.get(ctx, CONSUMER).row.state == states.ACTIVE


def test_an_allocation_that_is_released_meanwhile_is_not_made_active(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def release(*_given: object) -> None:
        monkeypatch.setattr(rpc, "run_host_step", lambda *_given: None)
        service.delete(ctx, CONSUMER)

    monkeypatch.setattr(rpc, "run_host_step", release)
    ask(conf, ctx, 1)
    engine.drain(conf)
    engine.make_due()
    engine.drain(conf)
    with db.reader() as session:
        assert session.scalars(sa.select(models.Allocation)).all() == []
        assert session.scalars(sa.select(models.Arq)).all() == []


def test_who_waits_in_the_process_that_makes_the_change_is_told(conf, ctx, monkeypatch) -> None:
    monkeypatch.setattr(service, "_FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(service, "_LONGEST_PAUSE", 3600.0)
    ask(conf, ctx, 1)
    waiting = threading.Thread(target=service.await_end, args=(ctx, CONSUMER, 3600.0))
    waiting.start()
    engine.drain(conf)
    waiting.join(60)
    assert not waiting.is_alive()
    assert states._waiting == {}
    assert states.are_changed_here()


@pytest.mark.parametrize("again", [False, True])
def test_what_the_work_has_changed_ends_it(conf, ctx, again) -> None:
    """No further transaction keeps the next step from being claimed, unless it is wanted again."""
    ask(conf, ctx, 1)
    item = engine.take("conductor-1", 600, [work.ALLOCATE])
    assert item is not None
    if again:
        with db.writer() as session:
            work.want(session, work.ALLOCATE, [CONSUMER])
    allocation_steps.run(conf, item)
    assert item.is_finished is not again
    left = {each.partition("/")[0] for each in engine.pending()}
    assert left == {work.HOST_STEP, *([work.ALLOCATE] if again else [])}
    assert work.finish(item) is not again
    assert (f"{work.ALLOCATE}/{CONSUMER}" in engine.pending()) is again


class _Agent:
    def host_step(self, context: dict[str, object], step: object, wait: float) -> None:
        """Do nothing."""


def test_a_message_in_memory_waits_for_no_look(conf, monkeypatch) -> None:
    monkeypatch.setattr(memory, "_LOOK_AGAIN", 3600.0)
    step = rpc.HostStep(
        action="prepare",
        driver="fake_driver",
        attach_handle_uuid="h",
        attach_type="TEST_PCI",
        attach_info={},
        cpid_type="PCI",
        cpid_info={},
        asked_ms=1,
        agent_started=1,
        arq_uuid="a",
    )
    with messages.transport(conf, "memory"):
        server = rpc.agent_server(conf, "host-1", _Agent())  # type: ignore[arg-type]
        server.start()
        assert server._started.wait(60)
        for _ in range(3):
            assert rpc.run_host_step(conf, "host-1", step, 60) is None
        server.stop()
