# SPDX-License-Identifier: Apache-2.0
"""A bind that is asked for while RabbitMQ cannot be reached."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from cyborg.tests import messages, servers, service
from cyborg.tests.novasink import NovaSink
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
    groups = [{"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}]
    site.call("POST", "/device_profiles", [{"name": "one", "groups": groups}])
    made = site.call("POST", "/accelerator_requests", {"device_profile_name": "one"})
    uuid_of_arq = str(made["arqs"][0]["uuid"])
    target = {"hostname": "host-1", "device_rp_uuid": RP, "instance_uuid": str(uuid.uuid4())}
    patch = [{"op": "add", "path": f"/{key}", "value": value} for key, value in target.items()]
    answer = site.ask("PATCH", "/accelerator_requests", {uuid_of_arq: patch})
    assert answer.status_code == 202
    return uuid_of_arq


def _state(site: Site, arq: str) -> str:
    return str(site.call("GET", f"/accelerator_requests/{arq}")["state"])


def test_without_a_host_step_it_is_bound_and_nova_told_all_the_same(
    site: Site, wire: messages.Wire, sink: NovaSink
) -> None:
    site.start()
    wire.cut()

    arq = _ask_for_a_bind(site)

    assert _state(site, arq) == "Bound"
    service.until(lambda: sink.events == {arq: "completed"})


def test_with_a_host_step_it_is_bound_when_rabbitmq_is_back(
    site: Site, wire: messages.Wire
) -> None:
    site.start(host_step=True)
    wire.cut()

    arq = _ask_for_a_bind(site)

    (row,) = service.until(lambda: [row for row in site.work("host-step") if row.last_error])
    assert row.last_error is not None
    assert "broker" in row.last_error
    assert _state(site, arq) == "BindStarted"
    wire.join()
    site.hurry(lambda: _state(site, arq) == "Bound")
