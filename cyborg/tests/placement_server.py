# SPDX-License-Identifier: Apache-2.0
"""The real Placement for tests: its own database a test, served over HTTP on the loopback."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import pathlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import requests
import sqlalchemy as sa
import webob
from cheroot import wsgi
from oslo_config import cfg
from placement import db_api

from cyborg import db, work
from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.peers import clients
from cyborg.placement import desired, local, sync, tree
from cyborg.tests import hosts, prepared_databases

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_HEADERS = {
    "X-Auth-Token": "admin",
    "OpenStack-API-Version": "placement 1.37",
    "Content-Type": "application/json",
}


#: Placement's tables of what providers have and what consumers have of it.
_OF_PROVIDERS = (
    "allocations",
    "consumers",
    "inventories",
    "resource_provider_traits",
    "resource_provider_aggregates",
)


_BELOW = """
    JOIN resource_providers rp ON rp.root_provider_id = root.id AND rp.id != root.id
    JOIN resource_providers parent ON parent.id = rp.parent_provider_id
"""
_AMOUNTS = tuple(field.name for field in dataclasses.fields(tree.Inventory))
_PROVIDERS_BELOW = f"""
    SELECT rp.uuid, rp.name, parent.uuid FROM resource_providers root {_BELOW} WHERE root.name = ?
"""
_INVENTORIES_BELOW = f"""
    SELECT rp.uuid, rc.name, {", ".join(f"inv.{name}" for name in _AMOUNTS)}
    FROM resource_providers root {_BELOW}
    JOIN inventories inv ON inv.resource_provider_id = rp.id
    JOIN resource_classes rc ON rc.id = inv.resource_class_id
    WHERE root.name = ?
"""
_TRAITS_BELOW = f"""
    SELECT rp.uuid, t.name
    FROM resource_providers root {_BELOW}
    JOIN resource_provider_traits rpt ON rpt.resource_provider_id = rp.id
    JOIN traits t ON t.id = rpt.trait_id
    WHERE root.name = ?
"""


_SHOWS = """
    SELECT rp.uuid, inv.total - inv.reserved, group_concat(t.name)
    FROM resource_providers rp
    JOIN inventories inv ON inv.resource_provider_id = rp.id
    JOIN resource_classes rc ON rc.id = inv.resource_class_id AND rc.name = ?
    LEFT JOIN resource_provider_traits rpt ON rpt.resource_provider_id = rp.id
    LEFT JOIN traits t ON t.id = rpt.trait_id
    GROUP BY rp.uuid, inv.total, inv.reserved
"""


def shows(
    tables: sqlite3.Connection, resource_class: str
) -> dict[str, tuple[int, frozenset[str]]]:
    """What of the class is not reserved, and the traits, by provider, as of one moment."""
    rows = tables.execute(_SHOWS, (resource_class,)).fetchall()
    return {uuid: (free, frozenset((traits or "").split(","))) for uuid, free, traits in rows}


def _check_schemas_once() -> None:
    """Placement checks for each request that the schema of its body is one, which takes longest."""
    check = jsonschema.Draft202012Validator.check_schema
    #: By its id each schema that is one; a schema that is kept keeps its id.
    checked: dict[int, Any] = {}

    def check_once(schema: Any, *rest: Any, **options: Any) -> None:
        if checked.get(id(schema)) is not schema:
            check(schema, *rest, **options)
            checked[id(schema)] = schema

    jsonschema.Draft202012Validator.check_schema = check_once  # type: ignore[method-assign]


class _Direct(requests.adapters.BaseAdapter):
    """Sends requests to an application in this process and in this thread."""

    def __init__(self, app: WSGIApplication) -> None:
        super().__init__()
        self._app = app

    def send(
        self, request: requests.PreparedRequest, *_given: Any, **_options: Any
    ) -> requests.Response:
        """The application's answer."""
        asked = webob.Request.blank(
            request.path_url, method=request.method, headers=dict(request.headers)
        )
        body = request.body or b""
        asked.body = body if isinstance(body, bytes) else body.encode()
        answer = asked.get_response(self._app)
        response = requests.Response()
        response.status_code = answer.status_code
        response.reason = answer.status
        response.headers.update(answer.headers)
        response.raw = io.BytesIO(answer.body)
        response.url, response.request = str(request.url), request
        return response

    def close(self) -> None:
        """Nothing is kept."""


class PlacementServer:
    """Placement at :attr:`url`, and a way round HTTP to look at it and to change it.

    ``calls`` has what arrived over HTTP since the test began, without the query. ``before``, where
    set, is called with each method and path first, and may answer instead of Placement.
    ``after``, where set, is called when a request may have changed something.
    ``lose_answer_after``, where set, is the number of requests after which one is done as asked
    but answered 500. ``delay_after``, where set, is the number of changes of providers after which
    one is answered 504, and done by :meth:`carry_out`.
    """

    def __init__(self, template: pathlib.Path) -> None:
        self._template = template
        self._server = wsgi.Server(("127.0.0.1", 0), self._serve, numthreads=16)
        self._server.prepare()
        self.url = f"http://127.0.0.1:{self._server.bind_addr[1]}"
        self._thread = threading.Thread(target=self._server.serve, daemon=True)
        self._thread.start()
        self._tables = sqlite3.connect(template, check_same_thread=False)
        self._begin()

    def _begin(self) -> None:
        self.calls: list[str] = []
        self.request_ids: set[str] = set()
        self.obey()

    def obey(self) -> None:
        """Answer whatever is asked, and as it should."""
        self.before: Callable[[str, str], webob.Response | None] | None = None
        self.after: Callable[[], None] | None = None
        self.lose_answer_after: int | None = None
        self.delay_after: int | None = None
        self._late: list[webob.Request] = []

    def renew(self, state_dir: pathlib.Path, conf: cfg.ConfigOpts) -> None:
        """Begin anew with an empty Placement in ``state_dir``, which ``conf`` then points at."""
        with (
            contextlib.closing(sqlite3.connect(self._template)) as source,
            contextlib.closing(sqlite3.connect(state_dir / local.DATABASE)) as target,
        ):
            source.backup(target)
        self.restart(state_dir)
        self.database = state_dir / local.DATABASE
        self._tables.close()
        self._tables = sqlite3.connect(self.database, check_same_thread=False)
        self._conf = conf
        local.point_at(conf, self.url)
        self._begin()

    def empty(self) -> None:
        """Begin anew with the same application, with no provider but the roots.

        The names of traits and of resource classes stay, as they do where Placement is older than
        what it is asked.
        """
        with contextlib.closing(sqlite3.connect(self.database)) as database, database:
            for table in _OF_PROVIDERS:
                database.execute(f"DELETE FROM {table}")
            database.execute("DELETE FROM resource_providers WHERE parent_provider_id IS NOT NULL")
        self._begin()

    def answer_at_once(self, conf: cfg.ConfigOpts) -> None:
        """Let what ``conf`` configures call Placement as a function, for tests that do so often."""
        session = clients.proxy(conf, "placement").session.session
        session.mount(self.url, _Direct(self._serve))

    def restart(self, state_dir: pathlib.Path) -> None:
        """Load Placement on what ``state_dir`` has."""
        self._app = local.load_app(state_dir)
        prepared_databases.share_compiled(db_api.get_placement_engine())

    def sync(self, *, full: bool = False) -> None:
        """Do the work ``placement/host-1``, which no other conductor takes over meanwhile.

        With ``full`` as after an audit's turn.
        """
        if full:
            with db.writer() as session:
                db.update(session, models.ResourceProvider, generation=None)
        self.sync_once()
        row = models.Work
        with db.writer() as session:
            db.delete(session, row, row.kind == work.PLACEMENT, row.key == "host-1")

    def sync_once(self) -> None:
        """The same, but do not say that it is done."""
        self.sync_host("host-1")

    def sync_host(self, name: str) -> None:
        """The same for any host."""
        sync.sync_host(self._conf, name, lambda: None)

    def stop(self) -> None:
        """Serve no more."""
        self._tables.close()
        self._server.stop()
        self._thread.join()

    def _serve(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.calls.append(f"{method} {path}")
        self.request_ids.add(environ.get("HTTP_X_OPENSTACK_REQUEST_ID", ""))
        answer = self.before(method, path) if self.before is not None else None
        if self.lose_answer_after is not None:
            if self.lose_answer_after == 0:
                webob.Request(environ).get_response(self._app)
                answer = webob.Response(status=500)
            self.lose_answer_after -= 1
        if self.delay_after is not None and method == "PUT" and "resource_providers" in path:
            if self.delay_after == 0:
                self._late.append(webob.Request(environ).copy())
                answer = webob.Response(status=504)
            self.delay_after -= 1
        said = (answer or self._app)(environ, start_response)
        if self.after is not None and method != "GET":
            self.after()
        return said

    def carry_out(self) -> list[int]:
        """Do what was given up long ago; how that ends."""
        late, self._late = self._late, []
        ends = [request.get_response(self._app).status_code for request in late]
        if self.after is not None:
            self.after()
        return ends

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Ask Placement past HTTP, as its operator or Nova would; its answer."""
        response = self._ask(method, path, body)
        assert response.status_code < 400, response.text
        return response.json if response.body else None

    def _ask(self, method: str, path: str, body: Any) -> webob.Response:
        request = webob.Request.blank(path, method=method, headers=_HEADERS)
        if body is not None:
            request.body = json.dumps(body).encode()
        return request.get_response(self._app)

    def make_provider(self, name: str, parent: str | None = None) -> str:
        """Make a provider as Nova would, and return its uuid."""
        body = {"name": name} | ({"parent_provider_uuid": parent} if parent else {})
        return str(self.call("POST", "/resource_providers", body)["uuid"])

    def allocate(self, consumer: str, provider: str, **resources: int) -> None:
        """Let ``consumer`` hold resources of the provider."""
        assert self.claims(consumer, provider, **resources)

    def claims(self, consumer: str, *providers: str, **resources: int) -> bool:
        """The same, of each of the providers, if Placement agrees."""
        body = {
            "allocations": {provider: {"resources": resources} for provider in providers},
            "consumer_generation": None,
            "project_id": "p",
            "user_id": "u",
        }
        answer = self._ask("PUT", f"/allocations/{consumer}", body)
        return bool(answer.status_code < 400)

    def release(self, consumer: str) -> None:
        """Drop all that ``consumer`` holds."""
        if self._select("SELECT 1 FROM allocations WHERE consumer_id = ?", consumer):
            self.call("DELETE", f"/allocations/{consumer}")

    def generation(self, uuid: str) -> int:
        """The provider's generation."""
        return int(self.call("GET", f"/resource_providers/{uuid}")["generation"])

    def set_inventories(self, uuid: str, **classes: dict[str, int]) -> None:
        """Replace a provider's inventories behind Cyborg's back."""
        body = {"resource_provider_generation": self.generation(uuid), "inventories": classes}
        self.call("PUT", f"/resource_providers/{uuid}/inventories", body)

    def set_traits(self, uuid: str, *traits: str) -> None:
        """Replace a provider's traits behind Cyborg's back."""
        for trait in traits:
            if trait.startswith("CUSTOM_"):
                self.call("PUT", f"/traits/{trait}")
        body = {"resource_provider_generation": self.generation(uuid), "traits": traits}
        self.call("PUT", f"/resource_providers/{uuid}/traits", body)

    def find(self, name: str) -> str | None:
        """The uuid of the provider of that name, if there is one."""
        found = self._select("SELECT uuid FROM resource_providers WHERE name = ?", name)
        return str(found[0][0]) if found else None

    def below(self, root_name: str) -> dict[str, tree.Provider]:
        """Everything below the root of that name, by uuid, with no generations."""
        inventories: dict[str, dict[str, tree.Inventory]] = {}
        for uuid, name, *amounts in self._select(_INVENTORIES_BELOW, root_name):
            inventory = tree.Inventory(**dict(zip(_AMOUNTS, amounts, strict=True)))
            inventories.setdefault(uuid, {})[name] = inventory
        traits: dict[str, set[str]] = {}
        for uuid, name in self._select(_TRAITS_BELOW, root_name):
            traits.setdefault(uuid, set()).add(name)
        return {
            uuid: tree.Provider(
                uuid=uuid,
                name=name,
                parent_uuid=parent,
                inventories=inventories.get(uuid, {}),
                traits=frozenset(traits.get(uuid, ())),
            )
            for uuid, name, parent in self._select(_PROVIDERS_BELOW, root_name)
        }

    def _select(self, query: str, *values: str) -> list[Any]:
        """What Placement's own tables have, for tests that look very often."""
        return self._tables.execute(query, values).fetchall()

    def offered(self, uuid: str) -> dict[str, tuple[int, int]]:
        """Total and reserved of each class of the provider."""
        found = self.call("GET", f"/resource_providers/{uuid}/inventories")["inventories"]
        return {name: (inv["total"], inv["reserved"]) for name, inv in found.items()}

    def shows(self, resource_class: str) -> dict[str, tuple[int, frozenset[str]]]:
        """What of the class is not reserved, and the traits, by provider."""
        return shows(self._tables, resource_class)

    def candidates(self, resource_class: str) -> set[str]:
        """The providers that the scheduler may claim one of the class from."""
        path = f"/allocation_candidates?resources={resource_class}:1"
        requests = self.call("GET", path)["allocation_requests"]
        return {uuid for request in requests for uuid in request["allocations"]}

    def assert_right(self, host_name: str) -> None:
        """Check that below the host's root there is what the database wants, and nothing else."""
        state = desired.read(host_name)
        assert state is not None
        if state.providers or self.find(state.root_name):
            assert self.below(state.root_name) == state.below(self.find(state.root_name))
        assert state.records.keys() - state.detached(0).keys() == state.providers.keys()


@pytest.fixture(scope="session")
def placement_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlacementServer]:
    """Placement has globals: one a test process, with a new database for each test."""
    state_dir = tmp_path_factory.mktemp("placement")
    local.load_app(state_dir)
    prepared_databases.share_aliases()
    _check_schemas_once()
    server = PlacementServer(state_dir / local.DATABASE)
    yield server
    server.stop()


@pytest.fixture
def placement(
    placement_process: PlacementServer, conf: cfg.ConfigOpts, tmp_path: pathlib.Path
) -> PlacementServer:
    """An empty Placement that ``[placement]`` of ``conf`` points at."""
    placement_process.renew(tmp_path, conf)
    return placement_process


@pytest.fixture
def root(placement: PlacementServer) -> str:
    """The root provider of :mod:`cyborg.tests.hosts`' host, as Nova makes it."""
    return placement.make_provider(hosts.ROOT)


@pytest.fixture
def card(root: str, placement: PlacementServer, database: sa.Engine) -> str:
    """The provider of one card with four handles, reported and in Placement already."""
    hosts.apply(hosts.card())
    placement.sync()
    placement.calls.clear()
    return provider_uuid("host-1_a")
