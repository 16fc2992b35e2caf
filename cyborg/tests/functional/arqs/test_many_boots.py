# SPDX-License-Identifier: Apache-2.0
"""Two conductors and many instances at once, on the databases that deadlock."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent import futures

import pytest

from cyborg.inventory.apply import provider_uuid
from cyborg.tests import boots, hosts, servers, service
from cyborg.tests.service import Site

HOSTS = ("host-1", "host-2")
CARDS = "abcd"
HANDLES = 16
#: ARQs of an instance, and as many instances as there are handles for.
SIZE = 4
INSTANCES = len(HOSTS) * len(CARDS) * HANDLES // SIZE

CONFIG = """
[DEFAULT]
transport_url = fake://
[conductor]
poll_interval = 0.1
[database]
connection = {database}
[nova]
auth_type = none
endpoint_override = {nova}
[placement]
auth_type = admin_token
endpoint = {placement}
token = admin
create_root_provider = true
"""


@pytest.fixture
def conductors(site, database_url, sink, tmp_path) -> Iterator[None]:
    config = tmp_path / "conductor.conf"
    values = {"database": database_url, "nova": sink.url, "placement": site.placement.url}
    config.write_text(CONFIG.format(**values))
    program = pathlib.Path(sys.executable).with_name("cyborg-conductor")
    command: list[str | pathlib.Path] = [program, "--config-file", config]
    running = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
    yield
    for process in running:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(service.PATIENCE) for process in running] == [0, 0]


def _providers() -> list[tuple[str, str]]:
    """Host and provider of each card."""
    for host in HOSTS:
        cards = [
            hosts.device(letter, hosts.deployable(f"{host}_{letter}", range(HANDLES)))
            for letter in CARDS
        ]
        hosts.apply(*cards, host=host)
    return [(host, provider_uuid(f"{host}_{letter}")) for host in HOSTS for letter in CARDS]


def _boot(site: Site, instance: str, host: str, provider: str) -> list[str]:
    """Have the ARQs of an instance bound as Nova does; their handles."""
    arqs = site.call("POST", "/accelerator_requests", {"device_profile_name": "four"})["arqs"]
    where = {"hostname": host, "device_rp_uuid": provider}
    body = boots.patch([arq["uuid"] for arq in arqs], instance, **where)
    assert site.ask("PATCH", "/accelerator_requests", body).status_code == 202
    path = f"/accelerator_requests?instance={instance}&bind_state=resolved"

    def resolved() -> list[dict[str, str]]:
        answer = site.ask("GET", path)
        assert answer.status_code in {200, 423}, answer.text
        return answer.json()["arqs"] if answer.status_code == 200 else []

    found = service.until(resolved)
    assert [arq["state"] for arq in found] == ["Bound"] * SIZE
    return [arq["attach_handle_uuid"] for arq in found]


@pytest.mark.parametrize(
    "database_kind",
    [pytest.param(kind, marks=pytest.mark.services) for kind in servers.DATABASES],
    indirect=True,
)
def test_no_client_sees_a_deadlock(site: Site, conductors: None) -> None:
    providers = _providers() * (HANDLES // SIZE)
    site.call("POST", "/device_profiles", [{"name": "four", "groups": [boots.GROUP] * SIZE}])
    instances = [str(uuid.uuid4()) for _ in range(INSTANCES)]
    # Where one fails, the others do not wait for it.
    gate = threading.Barrier(INSTANCES, timeout=3 * service.PATIENCE)

    def live(instance: str, place: tuple[str, str]) -> list[str]:
        gate.wait()
        handles = _boot(site, instance, *place)
        gate.wait()
        site.call("DELETE", f"/accelerator_requests?instance={instance}")
        return handles

    with futures.ThreadPoolExecutor(INSTANCES) as pool:
        handles = [one for many in pool.map(live, instances, providers) for one in many]
    assert len(set(handles)) == INSTANCES * SIZE == len(providers) * SIZE
    assert site.held() == {}
    service.until(site.idle)
