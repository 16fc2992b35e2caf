# SPDX-License-Identifier: Apache-2.0
"""What the services log: of a database that is away one line, and of a quiet system nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from cyborg.tests import messages, servers
from cyborg.tests.one_service import Service
from cyborg.tests.ports import free_port
from cyborg.tests.standalone_site import TIMEOUT, wait_for

AWAY = "The database cannot be reached"
BACK = "The database answers again"

pytestmark = [
    pytest.mark.services,
    pytest.mark.usefixtures("database"),
    pytest.mark.parametrize("database_kind", servers.DATABASES, indirect=True),
]


@pytest.fixture
def wire(database_url: str) -> Iterator[messages.Wire]:
    """What the service reaches its database over."""
    one = messages.Wire(database_url)
    one.join()
    yield one
    one.cut()


@pytest.fixture
def service(request, tmp_path, wire) -> Iterator[Service]:
    one = Service(request.param, tmp_path, wire.url)
    yield one
    one.kill()


def loud(service: Service) -> list[str]:
    """What it has said beside DEBUG, from when the database was cut off."""
    lines = [line for line in service.lines("") if " DEBUG " not in line]
    (began,) = [number for number, line in enumerate(lines) if AWAY in line]
    return lines[began:]


@pytest.mark.parametrize("service", ["cyborg-conductor"], indirect=True)
def test_a_conductor_without_its_database(service: Service, wire: messages.Wire) -> None:
    options = {"DEFAULT__transport_url": "fake://", "conductor__poll_interval": "0.1"}
    service.start(**options, DEFAULT__debug="true")
    service.says("Serving: cyborg-conductor")
    wire.cut()
    service.says(AWAY)
    # It goes on looking, with every part that it has.
    tries = "Periodic task cyborg.history.forget cannot run now"
    wait_for("ten rounds", lambda: len(service.lines(tries)) > 10)
    service.says("Cannot record a heartbeat")
    wire.join()
    service.says(BACK)
    assert [AWAY in loud(service)[0], BACK in loud(service)[1]] == [True, True]
    assert service.lines("Traceback") == []
    assert service.stop() == 0
    assert ["Stopping" in line for line in loud(service)[2:]] == [True]


@pytest.mark.parametrize("service", ["cyborg-api"], indirect=True)
def test_an_api_without_its_database(service: Service, wire: messages.Wire) -> None:
    port = free_port()
    service.start(
        DEFAULT__transport_url="fake://",
        DEFAULT__debug="true",
        api__port=str(port),
        api__auth_strategy="noauth",
    )
    service.says("Listening on")
    statuses = []
    for change in (lambda: None, wire.cut, wire.join):
        change()
        for path in ("v2/devices", "healthcheck") * 3:
            answer = requests.get(f"http://127.0.0.1:{port}/{path}", timeout=TIMEOUT)
            statuses.append(answer.status_code)
    assert statuses[0::6] == [200, 503, 200]
    service.says(BACK)
    assert [AWAY in loud(service)[0], BACK in loud(service)[1]] == [True, True]
    assert len(loud(service)) == 2
    assert service.lines("Traceback") == []
