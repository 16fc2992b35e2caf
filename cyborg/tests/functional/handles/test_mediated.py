# SPDX-License-Identifier: Apache-2.0
"""Mediated devices come and go with the requests that hold them, and come back after a reboot.

A real conductor's code and database; the steps reach the driver of a host whose sysfs acts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from oslo_config import cfg

from cyborg import conf as cyborg_conf
from cyborg import rpc
from cyborg.agent import discovery, host_steps, ownership, pass_counter
from cyborg.arqs import service
from cyborg.db import models
from cyborg.drivers import privileged, registry
from cyborg.handles import release
from cyborg.inventory import report as inventory_report
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts, messages
from cyborg.tests.privileged_acts import act

pytestmark = [pytest.mark.usefixtures("database")]

PATIENCE = 60
VGPU = {"resources:VGPU": "1"}
TYPE = "nvidia-468"
OTHERS = "11111111-2222-3333-4444-555555555555"


@functools.cache
def configured() -> cfg.ConfigOpts:
    """The host's configuration; a host's functions are called in one process."""
    conf = cfg.ConfigOpts()
    cyborg_conf.register(conf)
    conf(args=[], default_config_files=[], default_config_dirs=[])
    conf.set_override("enabled_drivers", ["nvidia_gpu_driver"], group="agent")
    conf.set_override("enabled_vgpu_types", [TYPE], group="gpu_devices")
    return conf


@functools.cache
def drivers() -> Any:
    """The drivers of the host."""
    privileged.context.set_client_mode(False)
    return registry.load(configured()).drivers


def discover() -> Mapping[str, ownership.Devices]:
    """What the driver finds; it must have no errors."""
    found = discovery.Discovery("host-1", drivers(), timeout=PATIENCE).run()
    assert found.errors == {}
    return found.devices


def step(wire: dict[str, Any]) -> str:
    try:
        counter = pass_counter.PassCounter(lambda: None)
        host_steps.StepEndpoint(configured(), drivers(), 0, counter).host_step({}, wire, PATIENCE)
    except rpc.HostStepFailed as exc:
        return str(exc)
    return ""


class Agent:
    """Carries messages to the host."""

    def __init__(self, host: Any) -> None:
        self.host = host

    def host_step(self, context: dict[str, Any], step_: dict[str, Any], wait: float) -> None:
        sentence = self.host.call(step, step_)
        if sentence:
            raise rpc.HostStepFailed(sentence)

    def report(self) -> None:
        found = self.host.call(discover)
        inventory_report.apply_report(hosts.report(by_driver=found))

    def mdevs(self) -> dict[str, str]:
        """The type of each mediated device by its uuid."""
        devices = self.host.path("/sys/bus/mdev/devices")
        paths = devices.iterdir() if devices.is_dir() else ()
        return {path.name: (path / "mdev_type").readlink().name for path in paths}

    def program(
        self, context: dict[str, Any], step: dict[str, Any], wait: float
    ) -> rpc.ProgramAnswer:
        raise AssertionError("nobody asks for it here")


@pytest.fixture
def agent(conf: cfg.ConfigOpts, simulate_live: Any) -> Iterator[Agent]:
    one = Agent(simulate_live({"cards": [{"card": "a100", "vfs": 2}]}))
    with messages.transport(conf, "memory"):
        server = rpc.agent_server(conf, "host-1", one)
        server.start()
        assert server._started.wait(PATIENCE)
        one.report()
        yield one
        server.stop()


def vfs(agent: Agent) -> list[str]:
    card = agent.host.device(agent.host.card("a100"))
    return [(card / f"virtfn{number}").readlink().name for number in range(2)]


def boot(agent: Agent, ctx: context.RequestContext, conf: cfg.ConfigOpts) -> str:
    """The instance that has asked for a part of the first virtual function."""
    place = provider_uuid(f"host-1_{vfs(agent)[0]}")
    return boots.boot(conf, ctx, 1, VGPU, device_rp_uuid=place)


def test_a_device_lives_as_long_as_the_request_that_holds_it(agent, ctx, conf):
    instance = boot(agent, ctx, conf)
    (handle,) = boots.handles(ctx)
    assert agent.mdevs() == {handle: TYPE}
    assert set(boots.states(ctx).values()) == {models.BOUND}

    # It is made again after a reboot.
    agent.report()
    agent.host.call(act, "remove_mdev", handle)
    assert agent.mdevs() == {}
    agent.report()
    engine.drain(conf)
    assert agent.mdevs() == {handle: TYPE}
    assert engine.pending() == {}

    release.delete_instance_arqs(ctx, instance)
    engine.drain(conf)
    assert (agent.mdevs(), boots.states(ctx)) == ({}, {})


def accelerators() -> list[int]:
    """How many there are of each virtual function."""
    rows = sorted(hosts.deployables(), key=lambda row: row.name)
    return [row.num_accelerators for row in rows]


def test_what_others_made_of_a_parent_is_not_ours_to_give(agent, ctx, conf):
    first, second = vfs(agent)
    # Somebody else was quicker than the report that would have said so.
    agent.host.call(act, "create_mdev", first, TYPE, OTHERS)
    instance = boot(agent, ctx, conf)
    assert set(boots.states(ctx).values()) == {models.BIND_FAILED}
    (arq,) = service.list_arqs(ctx)
    # In the kernel's words.
    place = f"/sys/class/mdev_bus/{first}/mdev_supported_types/{TYPE}/create"
    assert f"to {place}" in str(arq.private_reason)
    agent.host.call(act, "remove_mdev", OTHERS)
    release.delete_instance_arqs(ctx, instance)
    engine.drain(conf)

    instance = boot(agent, ctx, conf)
    agent.host.call(act, "create_mdev", second, TYPE, OTHERS)
    agent.report()
    assert accelerators() == [1, 0]
    agent.host.call(act, "remove_mdev", OTHERS)
    agent.report()
    assert accelerators() == [1, 1]
    # Of a new parent there is no more than others left.
    release.delete_instance_arqs(ctx, instance)
    engine.drain(conf)
    hosts.apply()
    agent.host.call(act, "create_mdev", first, TYPE, OTHERS)
    agent.report()
    assert accelerators() == [0, 1]
