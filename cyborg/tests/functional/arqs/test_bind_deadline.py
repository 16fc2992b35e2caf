# SPDX-License-Identifier: Apache-2.0
"""A bind whose host answers what nobody can understand ends in time, and Nova is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg

from cyborg import rpc
from cyborg.db import models
from cyborg.tests import hosts
from cyborg.tests.fpga import Card
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.novasink import NovaSink
from cyborg.tests.service import NAME, PATIENCE, Site, until
from cyborg.work import LONGEST_BACK_OFF


class Odd:
    """An agent that answers with a number, until it is repaired."""

    repaired = False

    def __init__(self) -> None:
        #: The seconds that each attempt was given.
        self.waits: list[float] = []

    def host_step(self, context: dict[str, Any], step: dict[str, Any], wait: float) -> Any:
        self.waits.append(wait)
        return None if self.repaired or step["action"] != "prepare" else 42

    def program(self, context: dict[str, Any], step: dict[str, Any], wait: float) -> Any:
        return self

    def to_wire(self) -> Any:
        answer = {"function": "aes", "verified_by": "a look", "report_counter": 0}
        return answer if self.repaired else 42


@pytest.fixture
def odd(site: Site) -> Iterator[Odd]:
    site.conf.set_override("bind_deadline", 1, group="conductor")
    part = hosts.deployable(NAME, prepares=True, program_mode="dynamic", function="")
    site.start_with(hosts.device("a", part))
    agent = Odd()
    server = rpc.agent_server(site.conf, "host-1", agent)
    server.start()
    assert server._started.wait(PATIENCE)
    yield agent
    agent.repaired = True
    site.hurry(site.idle)
    server.stop()


@pytest.mark.parametrize(
    ("group", "why"),
    # Of a write the deadline may be the first to speak.
    [({}, "not prepare"), ({"function_id": "aes"}, "programmed")],
    ids=["prepare", "program"],
)
def test_a_bind_whose_host_answers_nonsense_fails_in_the_end(
    odd: Odd, site: Site, images: GlanceServer, sink: NovaSink, group: dict[str, str], why: str
) -> None:
    site.conf.set_override("host_step_timeout", 3600, group="conductor")
    card = Card(site, images)
    card.image("aes")

    arq = card.bind(models.new_uuid(), **group)

    failed = card.resolved(arq)
    assert failed["state"] == "BindFailed", failed["state_reason"]
    assert why in failed["state_reason"]
    until(lambda: sink.events == {arq: "failed"})
    # Else the consumer, who waits as long, would be told too late.
    assert max(odd.waits, default=0) <= site.conf.conductor.bind_deadline
    assert odd.waits or group


def test_nova_waits_longer_than_a_bind_may_take(conf: cfg.ConfigOpts) -> None:
    """Both by their defaults: the last attempt follows a back-off, and the event takes its way."""
    look = "import nova.conf; print(nova.conf.CONF.arq_binding_timeout)"
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    nova_waits = int(said.stdout.split()[-1])
    way_of_event = 2 * conf.conductor.poll_interval
    assert conf.conductor.bind_deadline + LONGEST_BACK_OFF + way_of_event <= nova_waits
