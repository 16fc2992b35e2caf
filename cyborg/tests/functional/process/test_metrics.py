# SPDX-License-Identifier: Apache-2.0
"""What Prometheus reads of processes that have done something, over HTTP."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import prometheus_client
import pytest
import requests
import sqlalchemy as sa
import webob
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from prometheus_client import parser

from cyborg import conf as cyborg_conf
from cyborg import db, metrics, notifications, nova, work
from cyborg.api import middleware
from cyborg.conductor import gauges
from cyborg.db import models
from cyborg.handles import release
from cyborg.hosts import flags
from cyborg.tests import boots, engine, hosts
from cyborg.tests.counted_statements import SqlCounter
from cyborg.tests.one_service import Forked, get, ini
from cyborg.tests.ports import free_port
from cyborg.tests.standalone_site import TIMEOUT, Instance, Site, wait_for

pytestmark = pytest.mark.slow

WORK_COUNT = "cyborg_work_duration_seconds_count"
HANDLE_STATES = ("free", "in_use", "cleaning", "unavailable")
DEVICE_STATES = ("enabled", "maintaining", "unhealthy", "missing")

CountSql = Callable[[], contextlib.AbstractContextManager[SqlCounter]]
Key = tuple[str, frozenset[tuple[str, str]]]

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-", re.IGNORECASE)


class Scrape:
    """What one look at an endpoint shows."""

    def __init__(self, text: str) -> None:
        families = list(parser.text_string_to_metric_families(text))
        samples = [sample for family in families for sample in family.samples]
        self.names = {family.name for family in families}
        self.values: dict[Key, float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value for sample in samples
        }
        assert len(self.values) == len(samples), "a sample is shown twice"

    def get(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name that have these labels."""
        wanted = set(labels.items())
        return sum(v for (own, has), v in self.values.items() if own == name and wanted <= has)

    def labels(self, name: str) -> set[str]:
        """Every value of the label of that name."""
        return {value for _, has in self.values for label, value in has if label == name}


def scrape(port: int) -> Scrape:
    return Scrape(requests.get(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT).text)


def answers(port: int, path: str = "/metrics") -> bool:
    return get(port, path) == 200


def config(folder: pathlib.Path, **groups: Mapping[str, object]) -> pathlib.Path:
    """A configuration file with these options; DEFAULT has a transport in memory."""
    own = {"transport_url": "fake://", **groups.get("DEFAULT", {})}
    path = folder / f"{uuid.uuid4().hex}.conf"
    path.write_text(ini({**groups, "DEFAULT": own}))
    return path


@contextlib.contextmanager
def forked(command: str, path: pathlib.Path) -> Iterator[Forked]:
    """The command with that configuration, until the block ends."""
    started = Forked(command, "--config-file", str(path), log=path.with_suffix(".log"))
    try:
        yield started
    finally:
        started.kill()


@contextlib.contextmanager
def counting_api(path: pathlib.Path, counts: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    """An API that counts in a folder together with others, until the block ends."""
    program = pathlib.Path(sys.executable).with_name("cyborg-api")
    environment = os.environ | {metrics.MULTIPROCESS: str(counts)}
    with (
        path.with_suffix(".log").open("wb") as log,
        subprocess.Popen(
            [program, "--config-file", path], stdout=log, stderr=log, env=environment
        ) as started,
    ):
        try:
            yield started
        finally:
            started.kill()


def test_a_bind_is_told_of_from_the_request_to_the_handle(tmp_path: pathlib.Path) -> None:
    port = free_port()
    options = f"[metrics]\nport = {port}\ndatabase_interval = 0\n[fake_driver]\nhost_step = true\n"
    site = Site(tmp_path / "state", options)
    with site.serve():
        site.prepare()
        instance = Instance(site)
        instance.bind()
        wait_for("the bind", lambda: instance.states() == {"Bound"})
        wait_for("rest", site.is_at_rest)
        requests.get(f"{site.url}/v2/devices/{uuid.uuid4()}", timeout=TIMEOUT)
        requests.get(f"{site.url}/v2/{uuid.uuid4()}", timeout=TIMEOUT)
        # Work is measured when its row is gone.
        done = {"kind": "nova-event", "outcome": "done"}
        wait_for("the measure", lambda: scrape(port).get(WORK_COUNT, **done))
        seen = scrape(port)
        site.ask("DELETE", f"/v2/accelerator_requests?instance={instance.uuid}")
        wait_for("rest", site.is_at_rest)
        after = scrape(port)

    requests_to = "/v2/accelerator_requests"
    assert seen.get("cyborg_api_requests_total", method="PATCH", route=requests_to) == 1
    assert seen.get("cyborg_api_requests_total", route="/v2/devices/{uuid}", status="404") == 1
    assert seen.get("cyborg_api_requests_total", route="other", status="404") == 1
    assert seen.get("cyborg_api_request_duration_seconds_count", method="PATCH") == 1
    assert seen.get("cyborg_bind_duration_seconds_count", outcome="bound") == 2
    assert 0 <= seen.get("cyborg_bind_duration_seconds_sum", outcome="bound") < 2 * TIMEOUT
    assert seen.get("cyborg_report_duration_seconds_count", outcome="applied") >= 1
    placement = {"service": "placement", "status": "2xx"}
    assert seen.get("cyborg_client_request_duration_seconds_count", **placement) > 0
    assert seen.get("cyborg_accelerator_requests", state="Bound") == 2
    assert seen.get("cyborg_attach_handles", resource_class="FPGA", state="in_use") == 2
    found = seen.get("cyborg_attach_handles", resource_class="FPGA")
    assert after.get("cyborg_attach_handles", resource_class="FPGA", state="free") == found
    assert seen.get("cyborg_devices", type="FPGA", state="enabled") == 1
    assert seen.get("cyborg_hosts", state="up") == 1
    assert seen.get("cyborg_work_rows") == 0
    assert seen.get("cyborg_agent_driver_devices", driver="fake_driver") == 1
    assert seen.get("cyborg_agent_driver_failing", driver="fake_driver") == 0
    assert seen.get("cyborg_agent_last_timestamp_seconds", event="delivery") > 0
    for action in ("prepare", "clean"):
        # Two handles; a step whose answer is late is asked for again.
        step = {"action": action, "outcome": "done"}
        assert after.get("cyborg_host_step_duration_seconds_count", **step) >= 2
        step["driver"] = "fake_driver"
        assert after.get("cyborg_agent_step_duration_seconds_count", **step) >= 2
    labels = {value for _, has in after.values for _, value in has}
    assert not [value for value in labels if _UUID.search(value) or "host-1" in value]


def test_a_conductor_without_its_database_says_so(tmp_path: pathlib.Path) -> None:
    port = free_port()
    url = f"mysql+pymysql://nobody@127.0.0.1:{free_port()}/none"
    path = config(tmp_path, database={"connection": url}, metrics={"port": port})
    with forked("cyborg-conductor", path) as conductor:
        wait_for("the endpoint", lambda: answers(port))
        seen = scrape(port)
        conductor.send_signal(signal.SIGTERM)
        assert conductor.wait() == 0
    assert seen.get("cyborg_database_up") == 0
    assert "cyborg_work_rows" not in seen.names


@pytest.fixture(scope="module")
def agent_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of the metrics of an agent, whose reports nobody takes."""
    port = free_port()
    path = config(
        tmp_path_factory.mktemp("agent"),
        DEFAULT={"host": "Compute-1"},
        agent={"enabled_drivers": "fake_driver,no_such_driver"},
        metrics={"port": port, "names": "metrics.example, node.example"},
    )
    with forked("cyborg-agent", path):
        wait_for("the endpoint", lambda: answers(port))
        yield port


def test_a_name_that_is_not_this_machines_is_not_answered(agent_port: int) -> None:
    own = socket.gethostname()
    for name in ("127.0.0.1", "10.0.0.7", "[::1]", "localhost", "LOCALHOST", own, "compute-1"):
        assert asked_as(name, agent_port) == 200, name
    for name in ("metrics.example", "Node.Example"):
        assert asked_as(f"{name}:{agent_port}", agent_port) == 200, name
    # Nor is a client refused that says none, as no browser does.
    assert asked_as("", agent_port) == 200
    for name in ("evil.example", "localhost.evil.example", "compute-1.evil.example", "[::1"):
        for host in (name, f"{name}:{agent_port}"):
            assert asked_as(host, agent_port) == 403, host
    assert asked_as("evil.example", agent_port, "/") == 403


def asked_as(host: str, port: int, path: str = "/metrics") -> int:
    """The status of an answer to a request for that host; no metrics come with a refusal."""
    url = f"http://127.0.0.1:{port}{path}"
    answer = requests.get(url, headers={"Host": host}, timeout=TIMEOUT)
    assert answer.ok is ("cyborg_agent" in answer.text)
    return answer.status_code


def test_an_agent_tells_of_its_drivers_though_nobody_takes_its_report(agent_port: int) -> None:
    # The last that is told of a pass.
    failing, absent = "cyborg_agent_driver_failing", {"driver": "no_such_driver"}
    wait_for("a pass", lambda: scrape(agent_port).get(failing, **absent))
    seen = scrape(agent_port)
    assert seen.get("cyborg_agent_pass_duration_seconds_count", outcome="partial") >= 1
    assert seen.get(failing, driver="fake_driver") == 0
    assert seen.get(failing, **absent) == 1
    driver = {"driver": "fake_driver", "outcome": "found"}
    assert seen.get("cyborg_agent_driver_duration_seconds_count", **driver) >= 1
    assert seen.get("cyborg_agent_last_timestamp_seconds", event="delivery") == 0


@pytest.fixture
def api_file(database: sa.Engine, database_url: str, tmp_path: pathlib.Path) -> Callable[..., Any]:
    """Writes the file of an API and of its metrics, on those ports."""

    def written(port: int, shown_at: int) -> pathlib.Path:
        api = {"auth_strategy": "noauth", "port": port}
        url = {"connection": database_url}
        return config(tmp_path, database=url, api=api, metrics={"port": shown_at})

    return written


def test_processes_that_serve_together_are_counted_together(api_file, tmp_path) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    shared, ports = free_port(), [free_port(), free_port()]
    with counting_api(api_file(ports[0], shared), counts) as first:
        wait_for("the first", lambda: answers(shared))
        with counting_api(api_file(ports[1], shared), counts):
            for port in ports:
                wait_for("the API", functools.partial(answers, port, "/v2/devices"))
            assert counted(shared) == 2
            first.kill()
            first.wait()
            wait_for("its successor", lambda: answers(shared))
            assert counted(shared) == 2


def test_a_folder_that_is_not_there_fails_no_request(api_file, tmp_path) -> None:
    shared, port, counts = free_port(), free_port(), tmp_path / "counts"
    path = api_file(port, shared)
    with counting_api(path, counts):
        wait_for("the API", functools.partial(answers, port, "/v2/devices"))
        assert answers(port, "/v2/devices")
        assert answers(shared)
        counts.mkdir()
        assert answers(port, "/v2/devices")
    assert list(counts.iterdir())
    # Once that nothing is shown, and once for each of the two kinds of metrics.
    assert path.with_suffix(".log").read_text().count("Metrics cannot be counted in") == 3


def counted(port: int) -> float:
    return scrape(port).get("cyborg_api_requests_total", route="/v2/devices", status="200")


@pytest.mark.every_database
@pytest.mark.makes_up_rows
@pytest.mark.usefixtures("database")
def test_work_is_counted_by_kind_and_state(conf: cfg.ConfigOpts) -> None:
    with db.writer() as session:
        work.want(session, work.BIND, ["a", "b", "c", "d"])
        work.want(session, "of the future", ["e"])
        work.want(session, work.HOST_STEP, ["f", "g"])
        row = models.Work
        later, past = db.now_ms() + 600_000, db.now_ms() - 600_000
        db.update(session, row, row.key == "a", owner="one", lease_ms=later, attempts=3)
        db.update(session, row, row.key == "b", owner="two", lease_ms=past)
        db.update(session, row, row.key == "c", due_ms=later, wanted_ms=past, attempts=2)
        # Nobody is to do anything about what waits for others.
        waits = {"error_code": work.NotYet("of a guest").error_code}
        db.update(session, row, row.key == "f", wanted_ms=past, attempts=50, **waits)
        session.add(models.Notification(event_type="x", priority="INFO", payload={}))
    shown = read(gauges.Gauges(conf))
    kind = {"kind": "bind"}
    assert shown.get("cyborg_work_rows", state="claimed", **kind) == 1
    assert shown.get("cyborg_work_rows", state="backing_off", **kind) == 1
    assert shown.get("cyborg_work_rows", state="waiting", **kind) == 2
    assert 600 <= shown.get("cyborg_work_oldest_seconds", **kind) < 600 + TIMEOUT
    assert shown.get("cyborg_work_attempts", **kind) == 3
    assert shown.get("cyborg_work_rows", kind="of the future") == 1
    assert shown.get("cyborg_work_rows", kind=work.HOST_STEP) == 2
    assert shown.get("cyborg_work_oldest_seconds", kind=work.HOST_STEP) < 600
    assert shown.get("cyborg_work_attempts", kind=work.HOST_STEP) == 0
    assert {work.PLACEMENT, notifications.KIND} <= shown.labels("kind")
    assert shown.get("cyborg_notifications_waiting") == 1
    assert shown.names <= set(gauges.METRICS)
    assert shown.names == set(gauges.METRICS) - {"cyborg_attach_handles", "cyborg_devices"}


@pytest.mark.usefixtures("database")
def test_the_database_is_read_by_a_few_statements_and_not_at_every_look(conf, count_sql) -> None:
    hosts.apply(hosts.card("a"), hosts.card("b", range(4, 8), resource_class="PGPU"))
    shown = gauges.Gauges(conf)
    with count_sql() as counter:
        first = read(shown)
        hosts.apply()
        assert read(shown).values == first.values
    assert len([text for text in counter.matching("SELECT") if "count(" in text.lower()]) <= 7
    assert first.get("cyborg_attach_handles", state="free") == 8
    assert first.get("cyborg_attach_handles", resource_class="PGPU", state="free") == 4


@pytest.mark.every_database
@pytest.mark.usefixtures("database")
def test_each_handle_and_each_device_is_counted_once(ctx, conf) -> None:
    hosts.apply(
        hosts.device("a", hosts.deployable(boots.NAME, range(4), cleans=True)),
        hosts.device("b", hosts.deployable("host-1_b", range(4, 7)), unhealthy="too hot"),
        hosts.device("c", hosts.deployable("host-1_c", range(7, 9))),
        errors={"other": "it fails"},
    )
    with db.reader() as session:
        of_c = session.scalars(
            sa.select(models.Device.uuid)
            .join(models.Deployable, models.Deployable.device_id == models.Device.id)
            .where(models.Deployable.name == "host-1_c")
        ).one()
    flags.disable_device(of_c)
    used, dirty = boots.arqs(ctx, 2)
    for arq in (used, dirty):
        boots.bind(ctx, [arq], models.new_uuid())
        engine.drain(conf)
    release.delete_arqs(ctx, [dirty])
    with db.writer() as session:
        handle, long_ago = models.AttachHandle, db.now_ms() - 3_600_000
        db.update(session, handle, handle.left_ms.is_not(None), left_ms=long_ago)
    shown = read(gauges.Gauges(conf))
    states = {state: shown.get("cyborg_attach_handles", state=state) for state in HANDLE_STATES}
    assert states == {"free": 2, "in_use": 1, "cleaning": 1, "unavailable": 5}
    states = {state: shown.get("cyborg_devices", state=state) for state in DEVICE_STATES}
    assert states == {"enabled": 1, "maintaining": 1, "unhealthy": 1, "missing": 0}
    assert 3600 <= shown.get("cyborg_attach_handles_left_seconds") < 3600 + TIMEOUT
    assert shown.get("cyborg_hosts", state="up") == shown.get("cyborg_hosts") == 1
    assert shown.get("cyborg_hosts_with_driver_errors") == 1
    assert shown.get("cyborg_accelerator_requests", state=models.DELETING) == 1
    with db.writer() as session:
        db.update(session, models.Host, models.Host.down.is_(False), down=True)
    shown = read(gauges.Gauges(conf))
    states = {state: shown.get("cyborg_attach_handles", state=state) for state in HANDLE_STATES}
    assert states == {"free": 0, "in_use": 1, "cleaning": 1, "unavailable": 7}


def test_calls_of_other_services_are_counted_by_their_answers(conf, sink) -> None:
    def calls(status: str) -> float:
        labels = {"service": "compute", "method": "POST", "status": status}
        name = "cyborg_client_request_duration_seconds_count"
        return metrics.REGISTRY.get_sample_value(name, labels) or 0

    before = {status: calls(status) for status in ("2xx", "5xx", "none")}
    nova.send_events(conf, [])
    sink.status = 503
    nova.send_events(conf, [])
    elsewhere = cfg.ConfigOpts()
    cyborg_conf.register(elsewhere)
    elsewhere.set_override("auth_type", "none", group="nova")
    nowhere = f"http://127.0.0.1:{free_port()}"
    elsewhere.set_override("endpoint_override", nowhere, group="nova")
    with pytest.raises(ka_exc.ClientException):
        nova.send_events(elsewhere, [])
    assert {status: calls(status) - count for status, count in before.items()} == {
        "2xx": 1,
        "5xx": 1,
        "none": 1,
    }


def test_where_nobody_looks_requests_go_by_unmeasured(conf: cfg.ConfigOpts) -> None:
    application = webob.Response()
    with middleware.building(conf):
        assert middleware.metrics({})(application) is application
    assert metrics.endpoints(conf) == []


def read(collector: gauges.Gauges) -> Scrape:
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)
    return Scrape(prometheus_client.generate_latest(registry).decode())
