# SPDX-License-Identifier: Apache-2.0
"""Messages between services, in memory and over a real RabbitMQ."""

from __future__ import annotations

import dataclasses
import queue
import socket
import threading
import time
from concurrent import futures
from typing import Any

import pytest
from oslo_config import cfg
from oslo_messaging import opts

from cyborg import conf as cyborg_conf
from cyborg import rpc
from cyborg.common import errors
from cyborg.rpc import client as rpc_client
from cyborg.tests import full_payloads, heard_reports, messages, servers
from cyborg.tests.service import until

#: Long enough for a busy machine; nothing waits so long unless it is broken.
PATIENCE = 60


class Conductor(heard_reports.Conductor):
    """Keeps what it is told; ``fault`` is raised instead."""

    def __init__(self) -> None:
        super().__init__()
        self.kicks: queue.Queue[None] = queue.Queue()
        self.permit = rpc.WritePermit(seconds=7.5, refused=None)

    def kick(self, context: dict[str, Any]) -> None:
        self.kicks.put(None)

    def held_handles(self, context: dict[str, Any], request: dict[str, Any]) -> dict[str, str]:
        if self.fault is not None:
            raise self.fault
        return {"a handle": rpc.HeldRequest.from_wire(request).host}


class Agent:
    """Keeps the steps it is asked for; waits for ``gate`` and raises ``fault``."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.steps: queue.Queue[tuple[rpc.HostStep, float]] = queue.Queue()
        self.programs: queue.Queue[tuple[rpc.ProgramStep, float]] = queue.Queue()
        self.fault: Exception | None = None

    def host_step(self, context: dict[str, Any], step: dict[str, Any], wait: float) -> None:
        self.steps.put((rpc.HostStep.from_wire(step), wait))
        self.gate.wait(PATIENCE)
        if self.fault is not None:
            raise self.fault

    def program(
        self, context: dict[str, Any], step: dict[str, Any], wait: float
    ) -> rpc.ProgramAnswer:
        self.programs.put((rpc.ProgramStep.from_wire(step), wait))
        if self.fault is not None:
            raise self.fault
        return full_payloads.program_answer()


@dataclasses.dataclass
class Services:
    """A conductor and the agents of two hosts, on one transport."""

    conf: cfg.ConfigOpts
    conductor: Conductor
    agent: Agent
    other_agent: Agent


@pytest.fixture(scope="module", params=messages.TRANSPORTS)
def running(request):
    """Stopping a server takes a second, so these are for all tests."""
    conf = cfg.ConfigOpts()
    cyborg_conf.register(conf)
    conf(args=[], default_config_files=[], default_config_dirs=[])
    services = Services(conf, Conductor(), Agent(), Agent())
    with messages.transport(conf, request.param):
        receiving = [
            rpc.conductor_server(conf, services.conductor),
            rpc.agent_server(conf, "host-1", services.agent),
            rpc.agent_server(conf, "host-2", services.other_agent),
        ]
        for server in receiving:
            server.start()
        assert all(server._started.wait(PATIENCE) for server in receiving)
        yield services
        for server in receiving:
            server.stop()


@pytest.fixture
def services(running):
    for endpoint in (running.conductor, running.agent, running.other_agent):
        endpoint.__init__()
    return running


@pytest.fixture
def silent_port():
    """A port on which connections are accepted and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def refusing_port():
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.fixture(params=["silent_port", "refusing_port"])
def dead_broker(request, conf, monkeypatch):
    """``conf`` names a broker that does not work."""
    monkeypatch.setattr(rpc_client, "CONNECT_WAIT", 0.5)
    port = request.getfixturevalue(request.param)
    rpc.use_memory(conf)
    conf.set_override("transport_url", f"rabbit://user:secret@127.0.0.1:{port}/")
    yield
    conf.set_override("transport_url", "fake://")
    rpc.close()


def test_what_is_sent_arrives_whole_and_where_it_should(services):
    report, request = full_payloads.report(), full_payloads.write_request()
    rpc.report(services.conf, report)
    assert services.conductor.reports.get_nowait() == report
    assert rpc.report_unchanged(services.conf, report.unchanged())
    other = dataclasses.replace(report, devices={})
    assert not rpc.report_unchanged(services.conf, other.unchanged())
    assert rpc.permit_write(services.conf, request) == 7.5
    assert services.conductor.requests == [request]
    assert rpc.held_handles(services.conf, "host-1") == {"a handle": "host-1"}
    rpc.run_host_step(services.conf, "host-2", full_payloads.step(), 30)
    assert services.other_agent.steps.get_nowait() == (full_payloads.step(), 30)
    assert services.agent.steps.empty()
    answer = rpc.run_program(services.conf, "host-1", full_payloads.program_step(), 30)
    assert answer == full_payloads.program_answer()
    assert services.agent.programs.get_nowait() == (full_payloads.program_step(), 30)


def test_what_a_conductor_refuses_or_fails_in_is_said_without_details(services):
    report, request = full_payloads.report(), full_payloads.write_request()
    services.conductor.fault = errors.Invalid("the host's name is too long")
    with pytest.raises(rpc.ReportFailed, match="the host's name is too long"):
        rpc.report(services.conf, report)
    services.conductor.fault = RuntimeError("SELECT secret FROM table")
    with pytest.raises(rpc.ReportFailed, match=r"^(?!.*SELECT).*RuntimeError"):
        rpc.report(services.conf, report)
    with pytest.raises(rpc.NoPermit, match="RuntimeError") as caught:
        rpc.permit_write(services.conf, request)
    # That is no refusal.
    assert not isinstance(caught.value, rpc.WriteRefused)
    assert rpc.held_handles(services.conf, "host-1") is None
    services.conductor.fault = None
    services.conductor.permit = rpc.WritePermit(seconds=0, refused="It has ended.")
    with pytest.raises(rpc.WriteRefused, match=r"^It has ended\.$"):
        rpc.permit_write(services.conf, request)


def test_each_kick_is_followed_by_at_least_one_that_arrives(services):
    rpc.configure(services.conf)
    for _ in range(10):
        while not services.conductor.kicks.empty():
            services.conductor.kicks.get_nowait()
        rpc.kick()
        services.conductor.kicks.get(timeout=PATIENCE)


def test_what_a_step_ended_with_is_raised_with_its_sentence(services):
    services.agent.fault = rpc.HostStepFailed("the card is on fire")
    with pytest.raises(rpc.HostStepFailed, match=r"^the card is on fire$"):
        rpc.run_host_step(services.conf, "host-1", full_payloads.step(), 30)
    # One that goes on says for how long.
    cases: list[tuple[Any, int | None]] = [(290, 290), (None, None), (-1, None), ("1", None)]
    for said, known in cases:
        services.agent.fault = rpc.HostStepRunning("still cleaning", seconds=said)
        with pytest.raises(rpc.HostStepRunning, match=r"^still cleaning$") as running:
            rpc.run_host_step(services.conf, "host-1", full_payloads.step(), 30)
        assert running.value.seconds == known


@pytest.mark.parametrize(
    ("fault", "sentence", "facts"),
    [
        (rpc.HostStepRunning("still writing"), "^still writing$", None),
        (rpc.ProgramFailed("no", written=True, report_counter=7), "^no$", (True, 7)),
        (rpc.ProgramFailed("no", written=False, report_counter=7), "^no$", (False, 7)),
        # It may have written.
        (RuntimeError("details"), r"^(?!.*details).*RuntimeError", (True, None)),
    ],
    ids=["goes on", "written", "not written", "a fault"],
)
def test_programming_that_failed_tells_whether_anything_was_written(
    services, fault, sentence, facts
):
    services.agent.fault = fault
    expected = rpc.ProgramFailed if facts else rpc.HostStepRunning
    with pytest.raises(expected, match=sentence) as caught:
        rpc.run_program(services.conf, "host-1", full_payloads.program_step(), 30)
    failure: Any = caught.value
    assert facts is None or (failure.written, failure.report_counter) == facts


def test_a_host_whose_agent_is_not_there_is_unreachable(services, monkeypatch):
    monkeypatch.setattr(rpc_client, "SILENCE", 1)

    with pytest.raises(rpc.HostUnreachable) as caught:
        rpc.run_host_step(services.conf, "nowhere", full_payloads.step(), 0)

    assert not isinstance(caught.value, rpc.BrokerUnreachable)


def test_a_slow_step_may_take_longer_than_the_agent_may_be_silent(services, monkeypatch):
    # The signs of life come twice as often, and may be late.
    monkeypatch.setattr(rpc_client, "SILENCE", 6)
    services.agent.gate.clear()
    threading.Timer(8, services.agent.gate.set).start()

    rpc.run_host_step(services.conf, "host-1", full_payloads.step(), PATIENCE)

    assert services.agent.gate.is_set()


def test_a_kick_without_transport_is_nothing():
    rpc.close()

    rpc.kick()


@pytest.mark.usefixtures("dead_broker")
def test_a_dead_broker_is_told_from_a_dead_host(conf):
    with pytest.raises(rpc.BrokerUnreachable):
        rpc.run_host_step(conf, "host-1", full_payloads.step(), 30)
    with pytest.raises(rpc.ReportFailed, match="broker"):
        rpc.report(conf, full_payloads.report())
    with pytest.raises(rpc.NoPermit, match="broker"):
        rpc.permit_write(conf, full_payloads.write_request())
    # A server starts and stops none the less.
    server = rpc.agent_server(conf, "host-1", Agent())
    server.start()
    assert not server._started.wait(0.2)
    server.stop()


@pytest.mark.usefixtures("dead_broker")
def test_a_kick_to_a_dead_broker_is_not_waited_for_and_ends_in_the_log(conf, request, caplog):
    rpc.configure(conf)

    rpc.kick()

    if "silent_port" in request.node.name:
        # It is being asked still.
        assert "rpc-kick" in {thread.name for thread in threading.enumerate()}
    until(lambda: "No conductor was told" in caplog.text)


@pytest.mark.services
def test_services_find_each_other_whenever_the_broker_comes_and_comes_back(conf, monkeypatch):
    monkeypatch.setattr(rpc_client, "CONNECT_WAIT", 0.5)
    agent, wire = Agent(), messages.Wire(servers.url_of("rabbitmq"))

    def step_ends(failure: type[Exception] | None) -> None:
        """Ask for the step until it is answered, or fails in this way."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                rpc.run_host_step(conf, "host-1", full_payloads.step(), PATIENCE)
            except rpc.HostUnreachable as exc:
                if failure is not None and isinstance(exc, failure):
                    return
            else:
                if failure is None:
                    return
            time.sleep(0.1)
        pytest.fail(f"the step never ended in {failure}")

    with messages.transport(conf, "rabbitmq"):
        conf.set_override("transport_url", wire.url)
        server = rpc.agent_server(conf, "host-1", agent)
        server.start()
        step_ends(rpc.BrokerUnreachable)

        wire.join()
        step_ends(None)

        wire.cut()
        step_ends(rpc.BrokerUnreachable)

        wire.join()
        step_ends(None)
        server.stop()
        wire.cut()


@pytest.mark.parametrize(("given", "at_once"), [(None, 16), (3, 3)])
def test_a_conductor_handles_so_many_messages_at_the_same_time(conf, request, given, at_once):
    # See rpc.client.Client: these options are those of the process.
    cfg.CONF.register_opts(dict(opts.list_opts())[None])
    if given is not None:
        cfg.CONF.set_override("executor_thread_pool_size", given)
    request.addfinalizer(lambda: cfg.CONF.clear_override("executor_thread_pool_size"))
    begun, gate = threading.Semaphore(0), threading.Event()

    class Busy(Conductor):
        def report(self, context: dict[str, Any], report: dict[str, Any]) -> None:
            begun.release()
            gate.wait(PATIENCE)
            super().report(context, report)

    busy = Busy()
    with messages.transport(conf, "memory"), futures.ThreadPoolExecutor(at_once + 2) as hosts:
        server = rpc.conductor_server(conf, busy)
        server.start()
        assert server._started.wait(PATIENCE)
        for _ in range(at_once + 2):
            hosts.submit(rpc.report, conf, full_payloads.report())
        for _ in range(at_once):
            assert begun.acquire(timeout=PATIENCE)
        assert not begun.acquire(timeout=0.2)
        gate.set()
        for _ in range(at_once + 2):
            busy.reports.get(timeout=PATIENCE)
        server.stop()
