# SPDX-License-Identifier: Apache-2.0
"""SIGHUP: a running service takes over what changed in its configuration file."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from cyborg import db, work
from cyborg.db import models
from cyborg.tests.one_service import Service, get
from cyborg.tests.ports import free_port
from cyborg.tests.standalone_site import wait_for

pytestmark = pytest.mark.usefixtures("database")

#: Longer than any test waits.
NEVER = 3600


@pytest.fixture
def service(request, tmp_path, database_url) -> Iterator[Service]:
    one = Service(request.param, tmp_path, database_url)
    yield one
    one.kill()


def _done() -> bool:
    with db.reader() as session:
        return not session.scalar(sa.select(sa.func.count()).select_from(models.Work))


def _want() -> None:
    with db.writer() as session:
        work.want(session, work.NOVA_EVENT, [models.new_uuid()])


def _stays(service: Service, times: int) -> bool:
    return len(service.lines("The configuration stays as it is")) == times


@pytest.mark.parametrize("service", ["cyborg-conductor"], indirect=True)
def test_a_conductor_looks_for_work_as_often_as_the_file_now_says(service: Service) -> None:
    _want()
    service.start(conductor__poll_interval=str(NEVER))
    wait_for("the work", _done)
    service.reload(conductor__poll_interval="0.1", DEFAULT__debug="true")
    service.says("The configuration was read again")
    service.says(f"conductor.poll_interval changed from [{NEVER}] to [0.1]")
    # A file that is wrong changes nothing.
    for number, wrong in enumerate(("", "soon", "-1", "1\n[broken")):
        if wrong:
            service.reload(conductor__poll_interval=wrong, DEFAULT__debug="true")
        wait_for(wrong, functools.partial(_stays, service, number))
        for _ in range(2):
            _want()
            wait_for("the work", _done)
    service.says("DEBUG cyborg.conductor.worker")
    assert service.stop() == 0


@pytest.mark.parametrize("service", ["cyborg-agent"], indirect=True)
def test_an_agent_looks_for_devices_as_often_as_the_file_now_says(service: Service) -> None:
    never = str(NEVER)
    told = {"DEFAULT__debug": "true", "agent__report_interval": never}
    service.start(**told, agent__discovery_interval=never)
    service.says("Report 1 is not delivered yet")
    assert len(service.lines("Fake discover")) == 1
    service.reload(**told, agent__discovery_interval="1")
    wait_for("another pass", lambda: len(service.lines("Fake discover")) > 1)


@pytest.mark.parametrize("service", ["cyborg-api"], indirect=True)
def test_the_api_follows_the_file(service: Service) -> None:
    port = str(free_port())
    options = {"api__port": port, "api__auth_strategy": "noauth"}
    service.start(**options)
    wait_for("the API", lambda: get(int(port), "/") == 200)
    service.reload(**options, api__max_json_depth="16", agent__resource_provider_name="new")
    service.says("api.max_json_depth changed from [None] to [16]")
    service.says("Ignoring change to immutable option agent.resource_provider_name")
    assert service.stop() == 0
