# SPDX-License-Identifier: Apache-2.0
"""Cyborg as its clients meet it: the real API over HTTP, and behind it, where a test starts them,
a conductor and an agent with the fake driver, all in this process on the test's database.
"""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import requests
import sqlalchemy as sa
import webob
import webob.exc
from cheroot import wsgi
from oslo_config import cfg
from oslo_utils import uuidutils

from cyborg import conf as cyborg_conf
from cyborg import db, process, work
from cyborg.agent import service as agent_service
from cyborg.api import app, server
from cyborg.conductor import service as conductor_service
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import engine, hosts, messages
from cyborg.tests.placement_server import PlacementServer

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

T = TypeVar("T")

#: Seconds for which a condition is waited for, on a busy machine too.
PATIENCE = 180
#: Seconds between two looks: the first, and the longest.
_POLL, _POLL_MAX = 0.02, 0.06

#: The deployable of the fake driver's one device, and its provider.
NAME = "host-1_FakeDevice"
RP = provider_uuid(NAME)

#: A token of a user who is a member of this project and no more.
USER_TOKEN = "user-token"
USER_PROJECT = "project-2"
#: The same of one who is its manager, too.
MANAGER_TOKEN = "manager-token"
_USER = {"HTTP_X_USER_ID": "user-2", "HTTP_X_PROJECT_ID": USER_PROJECT}
_ROLES = {USER_TOKEN: "member,reader", MANAGER_TOKEN: "manager,member,reader"}


#: The one server that Nova knows by a name.
SERVER = "7a1c2b3d-0000-4000-8000-00000000beef"
SERVER_NAME = "a-server"


def until(condition: Callable[[], T | None]) -> T:
    """Wait for ``condition`` to return something true, and return that."""
    deadline = time.monotonic() + PATIENCE
    pause = _POLL
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(pause)
        pause = min(pause * 1.1, _POLL_MAX)
    return value


class _Tokens:
    """Sets for a token of one of the users the headers that keystonemiddleware would set.

    Whoever sends no such token stays what ``noauth`` makes of it: an administrator.
    """

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        identity: dict[str, Any] = {}
        roles = _ROLES.get(environ.get("HTTP_X_AUTH_TOKEN", ""))
        if roles is not None:
            identity = _USER | {"HTTP_X_ROLES": roles}
            if "HTTP_X_SERVICE_TOKEN" in environ:
                identity["HTTP_X_SERVICE_ROLES"] = "service"
        return self._application({**environ, **identity}, start_response)


def _neighbour(key: str) -> WSGIApplication:
    """Nova's servers, or Glance's images, as clients look them up by the one endpoint they have.

    Every uuid is one, so long as it is not all zeroes. One has a name.
    """

    def find(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        name = environ["PATH_INFO"].strip("/")
        if name == "detail":
            named = f"name={SERVER_NAME}" in environ["QUERY_STRING"]
            found = [{"id": SERVER, "name": SERVER_NAME}] if named else []
            return webob.Response(json={f"{key}s": found})(environ, start_response)
        if not uuidutils.is_uuid_like(name) or not name.strip("0-"):
            return webob.exc.HTTPNotFound()(environ, start_response)
        one = {"id": name, "name": name}
        body = {key: one} if key else one
        return webob.Response(json=body)(environ, start_response)

    return find


class ApiServer:
    """The built-in server at :attr:`url`, with whatever API the present test has."""

    def __init__(self) -> None:
        conf = cfg.ConfigOpts()
        cyborg_conf.register(conf)
        self._mounts: WSGIApplication = webob.exc.HTTPServiceUnavailable()
        self._server = server.Server(conf, self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.listen()}"
        self._server.start()
        self.stop = self._server.stop

    def serve(self, conf: cfg.ConfigOpts) -> None:
        """Load the API as ``conf`` describes it, without authentication."""
        conf.set_override("auth_strategy", "noauth", group="api")
        self._mounts = wsgi.PathInfoDispatcher(
            {
                "/": _Tokens(app.load(conf)),
                "/v2/servers": _neighbour("server"),
                "/v2/images": _neighbour(""),
            }
        )

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self._mounts(environ, start_response)


class Site:
    """One host under Cyborg, with the real Placement and somebody who takes Nova's events."""

    def __init__(
        self, conf: cfg.ConfigOpts, url: str, placement: PlacementServer, control: pathlib.Path
    ) -> None:
        self.conf = conf
        self.url = url
        self.endpoint = f"{url}/v2"
        self.placement = placement
        self._control = control
        self._wanted: dict[str, dict[str, Any]] = {}
        self._services: list[process.Service] = []

    def start(self, **fake_driver: object) -> None:
        """Start conductor and agent, and wait until Placement offers the device."""
        for name, value in fake_driver.items():
            self.conf.set_override(name, value, group="fake_driver")
        self.run_services()
        until(lambda: self.placement.find(NAME) and self.idle())

    def run_services(self) -> None:
        """Start conductor and agent, whatever devices it has."""
        self.placement.make_provider(hosts.ROOT)
        self._services = [
            conductor_service.ConductorService(self.conf),
            agent_service.Agent(self.conf),
        ]
        for part in self._services:
            part.start()

    def start_with(self, *devices: base.Device) -> None:
        """Start a conductor on a host whose agent reported these devices and then fell silent."""
        self.placement.make_provider(hosts.ROOT)
        self._services = [conductor_service.ConductorService(self.conf)]
        self._services[0].start()
        hosts.apply(*devices)
        self.hurry(self.idle)

    def stop(self) -> None:
        """Let all work come to its end, and stop what was started."""
        if not self._services:
            return
        try:
            self.obey()
            self._assert_right()
        finally:
            # Whatever was found: a conductor that outlived its test would work in the next ones.
            with futures.ThreadPoolExecutor() as pool:
                list(pool.map(lambda part: part.stop(), self._services))
            # Nobody works any more; what a last report wanted is left.
            self._services = []

    def _assert_right(self) -> None:
        """Check Placement at rest. Between rest and look a report may come, but not each time."""
        for more in (True, True, False):
            self.hurry(self.idle)
            try:
                self.placement.assert_right("host-1")
            except AssertionError:
                if more:
                    continue
                raise
            return

    def hang(self, *actions: str) -> None:
        """Let these host steps hang until told otherwise."""
        self._control_steps({action: {"hang": True} for action in actions})

    def fail(self, *actions: str) -> None:
        """Let these host steps fail until told otherwise."""
        self._control_steps({action: {"fail": "out of order"} for action in actions})

    def fail_at(self, action: str, where: str) -> None:
        """Let this host step fail at its start, in its middle or at its end."""
        self._control_steps({action: {"fail": "out of order", "fail_at": where}})

    def replace(self, kind: type[process.Service]) -> None:
        """Stop a part of the site, and start another in its place."""
        old = next(part for part in self._services if isinstance(part, kind))
        old.stop()
        new = kind(self.conf)  # type: ignore[call-arg]
        self._services[self._services.index(old)] = new
        new.start()

    def slow_down(self, *actions: str, seconds: float) -> None:
        """Let these host steps take so long."""
        self._control_steps({action: {"seconds": seconds} for action in actions})

    def make_unhealthy(self, *devices: int) -> None:
        """Let these fake devices be unhealthy, from the next report on."""
        self._control_steps({"unhealthy": {str(number): "It is on fire." for number in devices}})

    def obey(self, *actions: str) -> None:
        """Let these host steps work again, or all of them, and tell the conductor to try now."""
        self._wanted = {
            action: wanted
            for action, wanted in self._wanted.items()
            if actions and action not in actions
        }
        self._control_steps({})
        engine.make_due()

    def hurry(self, condition: Callable[[], T | None]) -> T:
        """Wait for ``condition`` to return something true; meanwhile no work backs off."""

        def hurried() -> T | None:
            engine.make_due()
            return condition()

        return until(hurried)

    def populate(self, **device: object) -> None:
        """Have a device with four handles in the database, without an agent or a conductor."""
        hosts.apply(hosts.device("a", hosts.deployable(NAME), **device))

    @db.retry
    def load(self, image_uuid: str) -> None:
        """Have the device run the image, as far as the database knows."""
        with db.writer() as session:
            values = {"program_mode": base.DYNAMIC, "bitstream_id": image_uuid}
            db.update(session, models.Deployable, **values)

    @db.retry
    def report_again(self) -> None:
        """Have Placement told of the host once more."""
        with db.writer() as session:
            work.want(session, work.PLACEMENT, ["host-1"])

    def _control_steps(self, wanted: dict[str, dict[str, Any]]) -> None:
        self._wanted |= wanted
        # The driver never sees half of it.
        draft = self._control.with_suffix(".new")
        draft.write_text(json.dumps(self._wanted))
        draft.replace(self._control)

    def call(self, method: str, path: str, body: object = None, version: str = "2.0") -> Any:
        """Ask the API as its administrator; the answer's document, if it has one."""
        answer = self.ask(method, path, body, version)
        assert answer.status_code < 400, answer.text
        return answer.json() if answer.content else None

    def ask(
        self, method: str, path: str, body: object = None, version: str = "2.0"
    ) -> requests.Response:
        """The same where the answer may be a refusal."""
        return requests.request(
            method,
            self.endpoint + path,
            json=body,
            headers={"OpenStack-API-Version": f"accelerator {version}"},
            timeout=PATIENCE,
        )

    def work(self, kind: str | None = None) -> list[models.Work]:
        """What is left to be done."""
        with db.reader() as session:
            rows = session.scalars(sa.select(models.Work))
            return [row for row in rows if kind in {None, row.kind}]

    def held(self) -> dict[str, str]:
        """The uuids of the attach handles that are not free, by the uuid of their ARQ."""
        arq, handle = models.Arq, models.AttachHandle
        query = (
            sa.select(sa.func.coalesce(arq.uuid, handle.left_arq), handle.uuid)
            .outerjoin(arq, arq.attach_handle_id == handle.id)
            .where(sa.or_(arq.id.is_not(None), handle.is_left))
        )
        with db.reader() as session:
            return {row[0]: row[1] for row in session.execute(query)}

    def idle(self) -> bool:
        """Whether nothing is left to be done."""
        return not self.work()

    def synced(self) -> bool:
        """Whether Placement has been told everything."""
        return not self.work(work.PLACEMENT)

    def offered(self) -> tuple[int, int]:
        """Total and reserved of the device in Placement, when it has been told everything."""
        until(self.synced)
        return self.placement.offered(RP)["FPGA"]


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """One server for all tests: stopping takes longer than many a test."""
    one = ApiServer()
    yield one
    one.stop()


@pytest.fixture
def site(conf, database, placement, sink, api_server, tmp_path) -> Iterator[Site]:
    """The API, served; the rest of the site is started by the test."""
    control = tmp_path / "control.json"
    conf.set_override("host_step_control", str(control), group="fake_driver")
    conf.set_override("resource_provider_name", hosts.ROOT, group="agent")
    conf.set_override("discovery_interval", 60, group="agent")
    conf.set_override("cache_path", str(tmp_path / "bitstreams"), group="programming")
    conf.set_override("poll_interval", 0.2, group="conductor")
    api_server.serve(conf)
    with messages.transport(conf, "memory"):
        one = Site(conf, api_server.url, placement, control)
        yield one
        one.stop()
