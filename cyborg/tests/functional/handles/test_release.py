# SPDX-License-Identifier: Apache-2.0
"""Every way to let go of accelerators, at every moment at which one may: nothing leaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from oslo_config import cfg

from cyborg import work
from cyborg.arqs import binding
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import release
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.service import RP, until

LetGo = Callable[[context.RequestContext, str, list[str]], None]

#: How an instance's ARQs are let go of. What is unbound stays, and can be bound again.
WAYS: dict[str, LetGo] = {
    "delete by instance": lambda ctx, instance, arqs: release.delete_instance_arqs(ctx, instance),
    "delete by uuids": lambda ctx, instance, arqs: release.delete_arqs(ctx, arqs),
    "unbind": lambda ctx, instance, arqs: binding.request_changes(ctx, {}, arqs),
}
ways = pytest.mark.parametrize("way", WAYS)
HANDLES = 2


def _let_go(way: str, ctx: context.RequestContext, instance: str, arqs: list[str]) -> None:
    """Let go twice: the second time is the same, or says that there is nothing."""
    WAYS[way](ctx, instance, arqs)
    try:
        WAYS[way](ctx, instance, arqs)
    except errors.NotFound:
        assert way == "delete by uuids"


def _expected(way: str, arqs: list[str]) -> dict[str, str]:
    return dict.fromkeys(arqs, models.UNBOUND) if way == "unbind" else {}


def _all_handles_can_be_given(ctx: context.RequestContext, conf: cfg.ConfigOpts) -> None:
    """Whether as many as there are can be bound, to others."""
    others = boots.arqs(ctx, HANDLES)
    boots.bind(ctx, others, models.new_uuid())
    engine.drain(conf)
    assert {boots.states(ctx)[uuid] for uuid in others} == {models.BOUND}
    assert engine.pending() == {}


@pytest.mark.every_database
@pytest.mark.usefixtures("database")
@ways
@pytest.mark.parametrize("moment", ["before the bind", "half bound", "bound"])
def test_without_a_host_step(ctx, conf, sink, way: str, moment: str) -> None:
    hosts.apply(hosts.card("a", range(HANDLES), program_mode="dynamic"))
    arqs = boots.arqs(ctx, HANDLES + (moment == "half bound"))
    instance = models.new_uuid()
    boots.bind(ctx, arqs, instance)
    if moment != "before the bind":
        engine.drain(conf)
        found = list(boots.states(ctx).values())
        assert found.count(models.BOUND) == HANDLES
        assert found.count(models.BIND_FAILED) == len(arqs) - HANDLES
    _let_go(way, ctx, instance, arqs)
    engine.drain(conf)
    assert boots.states(ctx) == _expected(way, arqs)
    assert boots.handles(ctx) == []
    assert len(sink.requests) == (moment != "before the bind")
    _all_handles_can_be_given(ctx, conf)


@ways
@pytest.mark.parametrize("moment", ["a step runs", "half prepared", "a step has failed"])
def test_with_a_host_step(site, ctx, sink, way: str, moment: str) -> None:
    site.start(host_step=True, handles_per_device=HANDLES)
    arqs, instance = boots.arqs(ctx, HANDLES), models.new_uuid()
    where = {"hostname": "host-1", "device_rp_uuid": RP}
    if moment == "half prepared":
        boots.bind(ctx, arqs[:1], instance, **where)
        until(lambda: sink.events == {arqs[0]: "completed"})
    if moment == "a step has failed":
        site.fail("prepare")
    else:
        site.hang("prepare")
    target = boots.target(instance, **where)
    binding.request_changes(ctx, dict.fromkeys(arqs, target), [])
    if moment == "a step has failed":
        # What is let go of sooner is announced to nobody; the handles may be clean already.
        until(lambda: sink.events == dict.fromkeys(arqs, "failed"))
    else:
        until(lambda: site.held().keys() == set(arqs))
    _let_go(way, ctx, instance, arqs)
    assert boots.states(ctx) == _expected(way, arqs)

    site.obey()
    site.hurry(site.idle)
    assert site.held() == {}
    assert site.offered() == (HANDLES, 0)
    assert boots.states(ctx) == _expected(way, arqs)
    events = {"half prepared": {arqs[0]: "completed"}, "a step runs": {}}
    assert sink.events == events.get(moment, dict.fromkeys(arqs, "failed"))


@pytest.mark.every_database
@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("way", ["unbind", "delete by uuids"])
def test_twice_while_a_handle_may_be_prepared(ctx: context.RequestContext, way: str) -> None:
    """The host may still be busy with what needs no cleaning after use."""
    hosts.apply(hosts.card("a", prepares=True))
    arqs, instance = boots.arqs(ctx), models.new_uuid()
    boots.bind(ctx, arqs, instance)
    bind = engine.take("conductor-1", 60, [work.BIND])
    assert bind is not None
    binding.bind_instance(bind)
    (handle,) = boots.handles(ctx)

    WAYS["unbind"](ctx, instance, arqs)
    WAYS[way](ctx, instance, arqs)

    assert f"{work.HOST_STEP}/{handle}" in engine.pending()
