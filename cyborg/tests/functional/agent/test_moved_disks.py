# SPDX-License-Identifier: Apache-2.0
"""Two disks change places while a guest has one, and the other has data of the host.

A real conductor's code and database; the steps reach the driver of a host whose sysfs acts. What
is erased when the guest gives its disk back is that disk, or nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, rpc
from cyborg.agent import discovery, host_steps, pass_counter
from cyborg.arqs import service as arqs
from cyborg.db import models
from cyborg.drivers import privileged, registry
from cyborg.handles import release
from cyborg.inventory import report as inventory_report
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts, messages, moving
from cyborg.tests.contract import passes

pytestmark = [pytest.mark.usefixtures("database")]

PATIENCE = 60
DISK = {"resources:CUSTOM_NVME": "1"}
GUESTS, HOSTS, THIRD = "S4GUEST", "S4HOST", "S4THIRD"


def tree(*serials: str) -> dict[str, Any]:
    """A host with these disks, in the order of their addresses."""
    nodes = [{"nvme/nvme{n}": {"attributes": {"serial": each}}} for each in serials]
    return {"cards": [{"card": "nvme-pm1733", "sriov": None, "nodes": each} for each in nodes]}


@functools.cache
def configured(listed: str) -> cfg.ConfigOpts:
    """The host's configuration; a host's functions are called in one process."""
    text = f'[nvme]\ndevice_spec = {{"address": "{listed}"}}\n'
    return passes.configured(text, ["nvme_driver"], "host-1")


@functools.cache
def drivers(listed: str) -> Any:
    for each in (privileged.context, privileged.erasing):
        each.set_client_mode(False)
    return registry.load(configured(listed)).drivers


def discover(listed: str) -> discovery.Findings:
    found = discovery.Discovery("host-1", drivers(listed), timeout=PATIENCE).run()
    assert found.errors == {}
    return discovery.Findings(devices=found.devices, errors={})


def step(listed: str, wire: dict[str, Any]) -> str:
    counter = pass_counter.PassCounter(lambda: None)
    endpoint = host_steps.StepEndpoint(configured(listed), drivers(listed), 0, counter)
    try:
        endpoint.host_step({}, wire, PATIENCE)
    except rpc.HostStepFailed as exc:
        return str(exc)
    return ""


class Agent:
    """Carries messages to the host, whose list has the disk at the first address, or all."""

    def __init__(self, simulate: Any, listed: str = "") -> None:
        self._simulate = simulate
        self.boot(GUESTS, HOSTS)
        self.listed = listed or self.host.card("nvme-pm1733")

    def boot(self, *serials: str) -> None:
        self.host = self._simulate(tree(*serials))

    def host_step(self, context: dict[str, Any], step_: dict[str, Any], wait: float) -> None:
        if sentence := self.host.call(step, self.listed, step_):
            raise rpc.HostStepFailed(sentence)

    def program(
        self, context: dict[str, Any], step: dict[str, Any], wait: float
    ) -> rpc.ProgramAnswer:
        raise AssertionError("nobody asks for it here")

    def report(self) -> None:
        found = self.host.call(discover, self.listed)
        inventory_report.apply_report(hosts.report(by_driver=found.devices))


@pytest.fixture(params=["", "*"], ids=["one address is listed", "all are listed"])
def agent(
    conf: cfg.ConfigOpts, simulate_live: Any, request: pytest.FixtureRequest
) -> Iterator[Agent]:
    one = Agent(simulate_live, request.param)
    with messages.transport(conf, "memory"):
        server = rpc.agent_server(conf, "host-1", one)
        server.start()
        assert server._started.wait(PATIENCE)
        one.report()
        yield one
        server.stop()


@pytest.fixture
def guest(agent: Agent, ctx: context.RequestContext, conf: cfg.ConfigOpts) -> str:
    """The uuid of the instance that has the first disk."""
    instance = models.new_uuid()
    provider = moving.rows()[GUESTS].provider
    boots.bind(ctx, boots.arqs(ctx, 1, DISK), instance, device_rp_uuid=provider)
    engine.drain(conf)
    assert set(boots.states(ctx).values()) == {models.BOUND}
    return instance


def left_reasons() -> list[str | None]:
    handle = models.AttachHandle
    with db.reader() as session:
        return list(session.scalars(sa.select(handle.left_reason).where(handle.is_left)))


def test_what_is_at_the_address_before_the_report_is_not_erased(agent, guest, ctx, conf):
    agent.boot(HOSTS, GUESTS)

    release.delete_instance_arqs(ctx, guest)
    engine.drain(conf)

    assert agent.host.writes() == []
    (reason,) = left_reasons()
    assert reason is not None
    assert (GUESTS in reason, HOSTS in reason) == (True, True)


def test_after_the_report_the_guests_own_disk_is_erased_or_none(agent, guest, ctx, conf):
    agent.boot(HOSTS, GUESTS)
    agent.report()
    (shown,) = arqs.list_arqs(ctx)
    is_listed = agent.listed == "*"
    assert ('"domain"' in (shown.attach_info or "")) is is_listed

    release.delete_instance_arqs(ctx, guest)
    engine.drain(conf)

    # The second disk is nvme1: that of the guest. Without the list's leave it stays as it is.
    assert agent.host.writes() == ([("/dev/nvme1", "sanitize crypto")] if is_listed else [])
    reasons = left_reasons()
    assert [bool(each and "its card is gone" in each) for each in reasons] == [True] * (
        not is_listed
    )


@pytest.mark.parametrize("agent", ["*"], indirect=True)
def test_a_disk_that_comes_back_elsewhere_is_erased_there(agent, guest, ctx, conf):
    agent.boot(THIRD)
    agent.report()
    release.delete_instance_arqs(ctx, guest)
    engine.drain(conf)
    assert agent.host.writes() == []

    agent.boot(THIRD, GUESTS)
    agent.report()
    engine.make_due()
    engine.drain(conf)

    assert agent.host.writes() == [("/dev/nvme1", "sanitize crypto")]
    assert left_reasons() == []
