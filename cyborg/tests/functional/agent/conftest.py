# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of agents."""

from __future__ import annotations

import pytest

from cyborg import rpc
from cyborg.agent import service
from cyborg.tests import messages
from cyborg.tests.heard_reports import PATIENCE, Conductor


@pytest.fixture
def broker(request, conf):
    with messages.transport(conf, getattr(request, "param", "memory")):
        yield


@pytest.fixture
def run_conductor(conf, broker):
    started = []

    def run(refusals: int = 0) -> Conductor:
        conductor = Conductor(refusals)
        server = rpc.conductor_server(conf, conductor)
        server.start()
        assert server._started.wait(PATIENCE)
        started.append(server)
        return conductor

    yield run
    for server in started:
        server.stop()


@pytest.fixture
def run_agent(conf, broker):
    started = []

    def run(**options: object) -> None:
        for name, value in {"discovery_interval": 600, **options}.items():
            conf.set_override(name, value, group="agent")
        started.append(service.Agent(conf))
        started[-1].start()

    yield run
    for agent in started:
        agent.stop()
