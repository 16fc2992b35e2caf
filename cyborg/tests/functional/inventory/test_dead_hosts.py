# SPDX-License-Identifier: Apache-2.0
"""Nobody waits for a host that is known to be dead, and it is asked again when it lives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg

from cyborg import db, history, rpc
from cyborg.common import errors
from cyborg.db import models, paging
from cyborg.handles import release
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts, messages

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]

PATIENCE = 60
RP = provider_uuid("host-1_b")


class Agent:
    """Does every step at once, and remembers it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def host_step(self, context: dict[str, Any], step: dict[str, Any], wait: float) -> None:
        self.asked.append(step["action"])

    def program(
        self, context: dict[str, Any], step: dict[str, Any], wait: float
    ) -> rpc.ProgramAnswer:
        raise AssertionError("nobody asks for it here")


@pytest.fixture
def agent(conf: cfg.ConfigOpts) -> Iterator[Agent]:
    with messages.transport(conf, "memory"):
        one = Agent()
        server = rpc.agent_server(conf, "host-1", one)
        server.start()
        assert server._started.wait(PATIENCE)
        yield one
        server.stop()


def test_a_handle_is_cleaned_when_its_dead_host_reports_again(
    agent: Agent, ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    card = hosts.card("b", cleans=True)
    hosts.apply(card)
    instance = models.new_uuid()
    boots.bind(ctx, boots.arqs(ctx), instance, device_rp_uuid=RP)
    engine.drain(conf)
    with db.writer() as session:
        db.update(session, models.Host, down=True)

    release.delete_instance_arqs(ctx, instance)
    engine.drain(conf)

    assert agent.asked == []
    (error,) = engine.pending().values()
    assert error == "Host host-1 is down; its agent is asked when it reports."
    hosts.apply(card)
    engine.make_due()
    engine.drain(conf)
    assert agent.asked == ["clean"]
    assert engine.pending() == {}


def test_nothing_new_is_bound_to_a_dead_host(
    ctx: context.RequestContext, conf: cfg.ConfigOpts
) -> None:
    card = hosts.card("b")
    hosts.apply(card)
    before, refused = models.new_uuid(), models.new_uuid()
    first, second = boots.arqs(ctx), boots.arqs(ctx)
    boots.bind(ctx, first, before, device_rp_uuid=RP)
    with db.writer() as session:
        db.update(session, models.Host, down=True)

    with pytest.raises(errors.Conflict, match="the host is down"):
        boots.bind(ctx, second, refused, device_rp_uuid=RP)

    assert boots.states(ctx) == {first[0]: models.BOUND, second[0]: models.INITIAL}
    (entry,) = history.list_entries(None, paging.ALL, instance_uuid=refused)
    assert entry.kind == history.BIND_FAILED
    assert "the host is down" in (entry.private_reason or "")
    # A consumer that asks again for what it has is not told otherwise.
    boots.bind(ctx, first, before, device_rp_uuid=RP)
    hosts.apply(card)
    boots.bind(ctx, second, refused, device_rp_uuid=RP)
    assert set(boots.states(ctx).values()) == {models.BOUND}
