# SPDX-License-Identifier: Apache-2.0
"""A bind that is asked for while RabbitMQ cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cyborg.db import models
from cyborg.tests import boots, messages, servers, service
from cyborg.tests.service import RP, Site

pytestmark = pytest.mark.services


@pytest.fixture
def wire(site: Site) -> Iterator[messages.Wire]:
    """What the services of the site reach RabbitMQ over."""
    line = messages.Wire(servers.url_of("rabbitmq"))
    line.join()
    with messages.transport(site.conf, "rabbitmq"):
        site.conf.set_override("transport_url", line.url)
        yield line
        site.stop()
    line.cut()


def _ask_for_a_bind(site: Site) -> str:
    site.call("POST", "/device_profiles", [{"name": "one", "groups": [boots.GROUP]}])
    made = site.call("POST", "/accelerator_requests", {"device_profile_name": "one"})
    arq = str(made["arqs"][0]["uuid"])
    patch = boots.patch([arq], models.new_uuid(), hostname="host-1", device_rp_uuid=RP)
    assert site.ask("PATCH", "/accelerator_requests", patch).status_code == 202
    return arq


def _state(site: Site, arq: str) -> str:
    return str(site.call("GET", f"/accelerator_requests/{arq}")["state"])


def test_without_a_host_step_it_is_bound_and_nova_told_all_the_same(site, wire, sink) -> None:
    site.start()
    wire.cut()

    arq = _ask_for_a_bind(site)

    assert _state(site, arq) == "Bound"
    service.until(lambda: sink.events == {arq: "completed"})


def test_with_a_host_step_it_is_bound_when_rabbitmq_is_back(site, wire) -> None:
    site.start(host_step=True)
    wire.cut()

    arq = _ask_for_a_bind(site)

    (row,) = service.until(lambda: [row for row in site.work("host-step") if row.last_error])
    assert row.last_error is not None
    assert "broker" in row.last_error
    assert _state(site, arq) == "BindStarted"
    wire.join()
    site.hurry(lambda: _state(site, arq) == "Bound")
