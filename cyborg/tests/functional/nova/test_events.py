# SPDX-License-Identifier: Apache-2.0
"""The rules of telling Nova what became of a bind."""

from __future__ import annotations

import logging

import pytest

from cyborg import db, rpc, work
from cyborg.arqs import binding, nova_events
from cyborg.db import models
from cyborg.handles import giving_up, release
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.novasink import NovaSink
from cyborg.tests.service import RP, until

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def bound(ctx: context.RequestContext) -> str:
    hosts.apply(hosts.device("a", hosts.deployable(boots.NAME)))
    return boots.ask(ctx)


def test_422_is_tried_again_until_bind_timeout(bound, conf, sink) -> None:
    sink.answer = 422
    engine.drain(conf)
    engine.make_due()
    engine.drain(conf)
    assert len(sink.requests) == 2
    assert engine.pending() == {f"nova-event/{bound}": f"Nova has no host for instance {bound} yet"}
    with db.writer() as session:
        db.update(session, models.Work, wanted_ms=models.Work.wanted_ms - 61_000)
    engine.make_due()
    engine.drain(conf)
    assert engine.pending() == {}


def test_nobody_is_warned_while_nova_has_no_host_yet(site, ctx, sink, caplog) -> None:
    caplog.set_level(logging.INFO)
    site.start()
    sink.answer = 422
    boots.ask(ctx, device_rp_uuid=RP)
    waiting = "Nova has no host for instance"
    until(lambda: any(waiting in record.getMessage() for record in caplog.records))
    sink.answer = 200
    site.hurry(site.idle)
    told = [record for record in caplog.records if waiting in record.getMessage()]
    assert {record.levelname for record in told} == {"INFO"}


@pytest.mark.parametrize("code", [404, 400])
def test_a_refusal_is_final(bound, conf, sink, code) -> None:
    sink.answer = code
    engine.drain(conf)
    assert len(sink.requests) == 1
    assert engine.pending() == {}


def test_trouble_is_tried_again_until_it_is_over(bound, conf, sink) -> None:
    for number, status in enumerate((500, 503, 401), start=1):
        sink.status = status
        engine.make_due()
        engine.drain(conf)
        assert list(engine.pending()) == [f"nova-event/{bound}"]
        assert len(sink.requests) == number
        with db.writer() as session:
            db.update(session, models.Work, wanted_ms=0)
    sink.status = None
    engine.make_due()
    engine.drain(conf)
    assert engine.pending() == {}
    assert len(sink.requests) == 4


def test_nova_that_is_away_is_tried_again_until_the_arq_is_gone(bound, ctx, conf) -> None:
    sink = NovaSink()
    sink.configure(conf)
    sink.stop()
    with pytest.raises(Exception, match="onnect"):
        engine.drain(conf)
    release.delete_instance_arqs(ctx, bound)
    with db.writer() as session:
        db.update(session, models.Work, owner=None, lease_ms=None)
    engine.make_due()
    engine.drain(conf)
    assert engine.pending() == {}


@pytest.mark.parametrize("leave", ["delete", "unbind", "force"])
def test_an_undecided_arq_that_leaves_its_instance_holds_up_no_event(
    ctx, conf, sink, monkeypatch, leave
) -> None:
    def nobody_answers(*_arguments: object) -> None:
        raise rpc.HostUnreachable("the agent does not answer")

    monkeypatch.setattr(rpc, "run_host_step", nobody_answers)
    hosts.apply(hosts.card("a"), hosts.card("b", range(4, 8), prepares=True))
    bound, undecided = boots.arqs(ctx, 2)
    instance, slow = models.new_uuid(), provider_uuid("host-1_b")
    targets = {
        bound: boots.target(instance),
        undecided: boots.target(instance, device_rp_uuid=slow),
    }
    binding.request_changes(ctx, targets, [])
    engine.drain(conf)
    assert boots.states(ctx) == {bound: models.BOUND, undecided: models.BIND_STARTED}
    assert sink.requests == []

    if leave == "delete":
        release.delete_arqs(ctx, [undecided])
    elif leave == "unbind":
        binding.request_changes(ctx, {}, [undecided])
    else:
        giving_up.release_arq(ctx, undecided, force=True)
    engine.drain(conf)

    ((event,),) = sink.requests
    assert (event["server_uuid"], event["tag"], event["status"]) == (instance, bound, "completed")


def test_the_last_arqs_of_an_instance_leave_without_an_event(ctx, conf, sink) -> None:
    hosts.apply(hosts.card(program_mode="dynamic"))
    instance = boots.ask(ctx, 2)
    early = engine.take("test", 3600.0, [work.NOVA_EVENT])
    assert early is not None
    nova_events.send(conf, early)
    work.finish(early)
    release.delete_instance_arqs(ctx, instance)
    assert f"nova-event/{instance}" not in engine.pending()
    engine.drain(conf)
    assert sink.requests == []
