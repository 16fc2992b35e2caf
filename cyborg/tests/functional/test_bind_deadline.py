# SPDX-License-Identifier: Apache-2.0
"""A bind whose host answers what nobody can understand ends in time, and Nova is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cyborg import rpc
from cyborg.db import models
from cyborg.tests import hosts
from cyborg.tests.fpga import Card
from cyborg.tests.glance_server import GlanceServer
from cyborg.tests.novasink import NovaSink
from cyborg.tests.service import NAME, PATIENCE, Site, until


class Odd:
    """An agent that answers with a number, until it is repaired."""

    repaired = False

    def host_step(self, context: dict[str, Any], step: dict[str, Any], wait: float) -> Any:
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
    assert server.wait_started(PATIENCE)
    yield agent
    agent.repaired = True
    site.hurry(site.idle)
    server.stop()


@pytest.mark.parametrize(
    ("group", "why"),
    [({}, "not prepare"), ({"function_id": "aes"}, "not be programmed")],
    ids=["prepare", "program"],
)
def test_a_bind_whose_host_answers_nonsense_fails_in_the_end(
    odd: Odd, site: Site, images: GlanceServer, sink: NovaSink, group: dict[str, str], why: str
) -> None:
    card = Card(site, images)
    card.image("aes")
    instance = models.new_uuid()

    arq = card.bind(instance, **group)

    failed = card.resolved(arq)
    assert failed["state"] == "BindFailed", failed["state_reason"]
    assert why in failed["state_reason"]
    until(lambda: sink.events == {arq: "failed"})
