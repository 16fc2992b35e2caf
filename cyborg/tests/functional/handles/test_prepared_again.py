# SPDX-License-Identifier: Apache-2.0
"""What was made ready for a guest is made ready again after its host has forgotten it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from oslo_config import cfg

from cyborg import rpc, work
from cyborg.agent import host_steps, pass_counter
from cyborg.db import models
from cyborg.drivers import base, fake
from cyborg.handles import release
from cyborg.inventory import report as inventory_report
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts, messages
from cyborg.tests.contract.driver import Host

pytestmark = pytest.mark.usefixtures("database")

PATIENCE = 60
RP = provider_uuid("host-1_FakeDevice")


class Agent:
    """The fake driver behind a real endpoint, and its reports as it finds things now."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._drivers: dict[str, base.Driver] = {}
        self.reboot()
        steps = host_steps.StepEndpoint(
            conf, self._drivers, 0, pass_counter.PassCounter(lambda: None)
        )
        self._server = rpc.agent_server(conf, "host-1", steps)
        self._server.start()
        assert self._server._started.wait(PATIENCE)
        self.stop = self._server.stop

    def reboot(self) -> None:
        """Forget everything that was prepared."""
        self._drivers["fake_driver"] = fake.FakeDriver(self._conf)

    def report(self, **changes: object) -> None:
        """Make a pass, and have it applied, with these changes of the deployable."""
        (device,) = self._drivers["fake_driver"].discover(Host("host-1"))
        (deployable,) = device.deployables
        deployable = dataclasses.replace(deployable, **changes)  # type: ignore[arg-type]
        found = dataclasses.replace(device, deployables=(deployable,))
        inventory_report.apply_report(hosts.report(by_driver={"fake_driver": (found,)}))

    def prepared(self) -> list[str]:
        """The handles that are ready."""
        (device,) = self._drivers["fake_driver"].discover(Host("host-1"))
        return list(device.deployables[0].prepared or ())


@pytest.fixture
def agent(conf: cfg.ConfigOpts) -> Iterator[Agent]:
    conf.set_override("host_step", True, group="fake_driver")
    with messages.transport(conf, "memory"):
        one = Agent(conf)
        one.report()
        yield one
        one.stop()


@pytest.fixture
def instance(agent: Agent, ctx: context.RequestContext, conf: cfg.ConfigOpts) -> str:
    """One that has a handle of the device."""
    uuid = boots.boot(conf, ctx, device_rp_uuid=RP)
    assert set(boots.states(ctx).values()) == {models.BOUND}
    assert agent.prepared() == boots.handles(ctx)
    return uuid


@pytest.mark.every_database
@pytest.mark.parametrize("handles", [None, 20], ids=["as before", "more"])
def test_a_bound_handle_is_prepared_again_after_a_reboot(
    agent, instance, ctx, conf, handles
) -> None:
    if handles is not None:
        # Nothing is done for what is ready.
        agent.report()
        assert not [done for done in engine.drain(conf) if done.startswith(work.HOST_STEP)]
        conf.set_override("handles_per_device", handles, group="fake_driver")
    for _ in range(2):
        agent.reboot()
        # Without more handles, the same words as before the step: they are news all the same.
        agent.report()
        engine.drain(conf)
        assert agent.prepared() == boots.handles(ctx)
    assert set(boots.states(ctx).values()) == {models.BOUND}
    assert handles in {None, *(row.num_accelerators for row in hosts.deployables())}


def test_a_guest_keeps_its_handle_until_it_leaves(agent, instance, ctx, conf, tmp_path) -> None:
    # A driver that cannot tell what is ready is not asked again.
    agent.reboot()
    agent.report(prepared=None)
    assert not [done for done in engine.drain(conf) if done.startswith(work.HOST_STEP)]

    # The host cannot prepare it.
    control = tmp_path / "control.json"
    control.write_text('{"prepare": {"fail": "no room"}}')
    conf.set_override("host_step_control", str(control), group="fake_driver")
    agent.report()
    engine.drain(conf)
    assert set(boots.states(ctx).values()) == {models.BOUND}
    (error,) = engine.pending().values()
    assert "the handle of a guest again: no room" in str(error)
    control.unlink()
    engine.make_due()
    engine.drain(conf)
    assert agent.prepared() == boots.handles(ctx)
    assert engine.pending() == {}

    # A guest that leaves before it is prepared again has its handle cleaned.
    agent.reboot()
    agent.report()
    release.delete_instance_arqs(ctx, instance)
    engine.drain(conf)
    assert (boots.states(ctx), agent.prepared(), engine.pending()) == ({}, [], {})
