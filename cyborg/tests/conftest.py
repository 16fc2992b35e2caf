# SPDX-License-Identifier: Apache-2.0
"""Fixtures shared by every test: configuration, a real database, a counter of statements."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import uuid
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import conf as cyborg_conf
from cyborg import db, process
from cyborg.allocations import shortages
from cyborg.audits import consistency
from cyborg.conductor import predecessors
from cyborg.peers import clients
from cyborg.placement import compare
from cyborg.policy import context
from cyborg.policy.enforcer import Enforcer
from cyborg.rpc import lines
from cyborg.tests import callers, fixtures, servers
from cyborg.tests.counted_statements import SqlCounter
from cyborg.tests.novasink import NovaSink
from cyborg.tests.prepared_databases import Templates

# No test outlives a power failure, so nobody waits for the disk. oslo.config reads these variables
# in this process and in those that it starts.
for _group in ("DATABASE", "PLACEMENT_DATABASE"):
    os.environ.setdefault(f"OS_{_group}__SQLITE_SYNCHRONOUS", "false")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--room", help="Run the tests of one room of the code, such as arqs.")


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """Load the modules of fixtures; ``pytest .`` permits no ``pytest_plugins`` in this folder."""
    if getattr(plugin, "__file__", None) == __file__:
        for name in fixtures.MODULES:
            manager.import_plugin(name)


def pytest_collection_finish() -> None:
    """Look seldom for garbage among all that is loaded. That saves a tenth of the time."""
    process.collect_less_garbage()


@pytest.fixture
def conf(tmp_path: pathlib.Path) -> Iterator[cfg.ConfigOpts]:
    """A fresh configuration with every option of Cyborg, as if read from an empty file.

    But for files, which are kept in a folder of the test's own; only the fake driver is enabled, as
    in cyborg-standalone; and an API without authentication asks nobody where he is.
    """
    fresh = cfg.ConfigOpts()
    cyborg_conf.register(fresh)
    db.register(fresh)
    fresh(args=[], project="cyborg", default_config_files=[], default_config_dirs=[])
    fresh.set_override("host", "host-1")
    fresh.set_override("state_path", str(tmp_path / "state"))
    fresh.set_default("enabled_drivers", ["fake_driver"], group="agent")
    # A request that no server has brought has no address.
    fresh.set_default("noauth_allow_remote", True, group="api")
    yield fresh
    clients.close()


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """A command that a test runs in this process sets up the log of the whole process."""
    logger = logging.getLogger()
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


@pytest.fixture(autouse=True)
def conductors_end_with_their_test() -> Iterator[None]:
    """A conductor keeps a descriptor as long as its process lives, which is that of many tests."""
    yield
    while predecessors._held:
        os.close(predecessors._held.pop())


@pytest.fixture(autouse=True)
def lines_of_this_test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log takes so many lines of a kind in a minute, in which many tests run."""
    monkeypatch.setattr(lines, "_said", {})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests marked ``every_database`` on SQLite and on each real server."""
    if metafunc.definition.get_closest_marker("every_database"):
        on_servers = [pytest.param(kind, marks=pytest.mark.services) for kind in servers.DATABASES]
        metafunc.parametrize("database_kind", ["sqlite", *on_servers], indirect=True)


@pytest.fixture
def database_kind(request: pytest.FixtureRequest) -> str:
    """``sqlite``, or the server that a test marked ``every_database`` runs on."""
    return getattr(request, "param", "sqlite")


@pytest.fixture
def database_driver(request: pytest.FixtureRequest) -> str | None:
    """The driver that a test needs which is run with several: see ``servers.DRIVERS``."""
    return getattr(request, "param", None)


@pytest.fixture
def database_url(
    database_kind: str,
    database_driver: str | None,
    tmp_path: pathlib.Path,
    templates: Templates,
    request: pytest.FixtureRequest,
) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    if database_kind == "sqlite":
        yield f"sqlite:///{tmp_path / 'cyborg.sqlite'}"
        return
    if "database" in request.fixturenames:
        new = templates.on_server(database_kind, request.getfixturevalue("conf"))
    else:
        new = servers.new_database(database_kind, f"cyborg_{uuid.uuid4().hex[:12]}")
    with new as url:
        yield servers.with_driver(url, database_driver) if database_driver else url


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Templates]:
    """What new databases are copied from."""
    made = Templates(tmp_path_factory.mktemp("databases"))
    yield made
    made.close()


@pytest.fixture
def database(
    conf: cfg.ConfigOpts,
    database_url: str,
    templates: Templates,
    request: pytest.FixtureRequest,
) -> Iterator[sa.Engine]:
    """The engine of a database with the newest schema, which this process is configured for.

    What the test leaves in it must be sound, unless the test is marked ``makes_up_rows``, and so
    must Placement, where the test has one and no work on it is left to be done.
    """
    templates.fill(database_url, conf)
    # Hosts of other tests have the same names.
    shortages._trusted.clear()
    yield db.engine()
    if request.node.get_closest_marker("makes_up_rows") is None:
        assert consistency.violations() == []
        if "placement" in request.fixturenames:
            request.getfixturevalue("placement_process").obey()
            assert [found for _, found in compare.compare_all(conf) if found.differences] == []
    db.dispose()


@pytest.fixture
def count_sql(
    database: sa.Engine,
) -> Callable[[], contextlib.AbstractContextManager[SqlCounter]]:
    """``with count_sql() as counter`` records statements; BEGIN and COMMIT are not among them."""

    @contextlib.contextmanager
    def counting() -> Iterator[SqlCounter]:
        counter = SqlCounter()

        def record(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
            if not statement.upper().startswith(("BEGIN", "PRAGMA")):
                counter.statements.append(statement)

        engines = db.engines()
        for each in engines:
            sa.event.listen(each, "before_cursor_execute", record)
        try:
            yield counter
        finally:
            for each in engines:
                sa.event.remove(each, "before_cursor_execute", record)

    return counting


@pytest.fixture
def enforcer(conf: cfg.ConfigOpts) -> Enforcer:
    return Enforcer(conf, service_token_roles={"service"})


@pytest.fixture
def ctx(enforcer: Enforcer) -> context.RequestContext:
    return callers.admin(enforcer, project_id="project-1")


@pytest.fixture
def tenant(enforcer: Enforcer) -> context.RequestContext:
    return context.RequestContext(
        enforcer=enforcer, project_id="project-2", roles=["member"], service_roles=["service"]
    )


@pytest.fixture
def sink(conf: cfg.ConfigOpts) -> Iterator[NovaSink]:
    nova = NovaSink()
    nova.configure(conf)
    yield nova
    nova.stop()
