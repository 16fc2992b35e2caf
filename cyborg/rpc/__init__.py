# SPDX-License-Identifier: Apache-2.0
"""Messages between the services: the payloads, the clients and the servers.

A message only carries a report or asks for a step. What must not be lost is in the database.
"""

from __future__ import annotations

import logging
import threading

import oslo_messaging as messaging
from oslo_config import cfg

from cyborg import errors, metrics
from cyborg.rpc import link, servers
from cyborg.rpc.faults import (
    BadMessage,
    BrokerUnreachable,
    HostStepFailed,
    HostStepRunning,
    HostUnreachable,
    ProgramFailed,
    ReportFailed,
    TooOld,
)
from cyborg.rpc.link import VERSION
from cyborg.rpc.payloads import HostReport, HostStep, ProgramAnswer, ProgramStep
from cyborg.rpc.servers import AgentEndpoint, ConductorEndpoint, Server

__all__ = [
    "VERSION",
    "AgentEndpoint",
    "BadMessage",
    "BrokerUnreachable",
    "ConductorEndpoint",
    "HostReport",
    "HostStep",
    "HostStepFailed",
    "HostStepRunning",
    "HostUnreachable",
    "ProgramAnswer",
    "ProgramFailed",
    "ProgramStep",
    "ReportFailed",
    "Server",
    "agent_server",
    "check",
    "close",
    "conductor_server",
    "configure",
    "kick",
    "report",
    "run_host_step",
    "run_program",
    "use_memory",
]

LOG = logging.getLogger(__name__)

_configuring = threading.Lock()
_current: link.Link | None = None


def use_memory(conf: cfg.ConfigOpts) -> None:
    """Let the services of this one process send each other messages in memory."""
    messaging.TransportURL.parse(conf, "fake://")  # registers the option
    conf.set_override("transport_url", "fake://")


def configure(conf: cfg.ConfigOpts) -> None:
    """Make this process's transport, as ``[DEFAULT] transport_url`` says. Connects to nothing."""
    _link(conf)


def close() -> None:
    """Close this process's transport."""
    global _current  # noqa: PLW0603 - one transport a process
    with _configuring:
        if _current is not None:
            _current.close()
        _current = None


def check() -> None:
    """Return when the broker has taken a message. Waits as long as that takes.

    :raises BrokerUnreachable: it does not
    """
    if _current is not None:
        _current.check()


def kick() -> None:
    """Tell a conductor to look for work now. Waits for nothing and never raises."""
    if _current is None:
        LOG.debug("There is no transport; the conductor will look for work by itself")
        return
    try:
        _current.kick()
    except Exception:
        LOG.exception("Cannot tell a conductor of new work; it will look by itself")


def report(conf: cfg.ConfigOpts, host_report: HostReport) -> None:
    """Have a conductor store a host report; return when it has.

    :raises ReportFailed: it is not known to be stored
    """
    try:
        answer = _link(conf).report(host_report)
    except errors.CyborgError as exc:
        raise ReportFailed(str(exc)) from exc
    if "failed" in answer:
        raise ReportFailed(f"the conductor failed: {answer['failed']}")


def run_host_step(conf: cfg.ConfigOpts, host: str, step: HostStep, timeout: float) -> None:
    """Have the agent of ``host`` carry out a step; return when it is done.

    :raises HostStepFailed: the driver refused
    :raises HostUnreachable: no answer, or none within ``timeout`` seconds
    :raises BrokerUnreachable: there is nothing to ask over
    """
    with metrics.observed(metrics.HOST_STEP_SECONDS, action=step.action, outcome="done") as seen:
        try:
            _run_host_step(conf, host, step, timeout)
        except errors.CyborgError as exc:
            seen["outcome"] = _STEP_OUTCOMES.get(type(exc), "failed")
            raise


def run_program(
    conf: cfg.ConfigOpts, host: str, step: ProgramStep, timeout: float
) -> ProgramAnswer:
    """Have the agent of ``host`` load a bitstream; return when it is verified to be there.

    :raises ProgramFailed: it is not loaded
    :raises HostStepRunning: it is not done within ``timeout`` seconds; asking again joins it
    :raises HostUnreachable: no answer
    :raises BrokerUnreachable: there is nothing to ask over
    """
    with metrics.observed(metrics.HOST_STEP_SECONDS, action="program", outcome="done") as seen:
        try:
            return _run_program(conf, host, step, timeout)
        except errors.CyborgError as exc:
            seen["outcome"] = _STEP_OUTCOMES.get(type(exc), "failed")
            raise


_STEP_OUTCOMES: dict[type[errors.CyborgError], str] = {
    BrokerUnreachable: "no_broker",
    HostStepRunning: "running",
    HostUnreachable: "unreachable",
}


def _run_host_step(conf: cfg.ConfigOpts, host: str, step: HostStep, timeout: float) -> None:
    try:
        answer = _link(conf).host_step(host, step, timeout)
    except BadMessage as exc:
        raise HostStepFailed(str(exc)) from exc
    if "failed" in answer:
        raise HostStepFailed(answer["failed"])
    if "running" in answer:
        raise HostStepRunning(answer["running"])


def _run_program(
    conf: cfg.ConfigOpts, host: str, step: ProgramStep, timeout: float
) -> ProgramAnswer:
    try:
        answer = _link(conf).program(host, step, timeout)
        if "failed" in answer:
            # Without a word on it, whatever ran before cannot be relied on.
            raise ProgramFailed(
                answer["failed"],
                written=answer.get("written", True),
                report_counter=answer.get("report_counter"),
            )
        if "running" in answer:
            raise HostStepRunning(answer["running"])
        return ProgramAnswer.from_wire(answer)
    except TooOld as exc:
        raise ProgramFailed(str(exc), written=False) from exc
    except BadMessage as exc:
        raise ProgramFailed(str(exc), written=True) from exc
    except KeyError as exc:
        raise ProgramFailed(f"The agent's answer lacks {exc}", written=True) from exc


def conductor_server(conf: cfg.ConfigOpts, endpoint: ConductorEndpoint) -> Server:
    """Return the server of a conductor. Each message goes to one of the conductors."""
    return _server(conf, link.CONDUCTOR_TOPIC, conf.host, servers.ConductorMethods(endpoint))


def agent_server(conf: cfg.ConfigOpts, host: str, endpoint: AgentEndpoint) -> Server:
    """Return the server of the agent of ``host``."""
    return _server(conf, link.AGENT_TOPIC, host, servers.AgentMethods(endpoint))


def _server(conf: cfg.ConfigOpts, topic: str, name: str, methods: object) -> Server:
    target = messaging.Target(exchange=link.EXCHANGE, topic=topic, server=name)
    return Server(_link(conf).transport, target, methods)


def _link(conf: cfg.ConfigOpts) -> link.Link:
    global _current  # noqa: PLW0603 - one transport a process
    with _configuring:
        url = messaging.TransportURL.parse(conf)
        if _current is None or _current.url != str(url):
            if _current is not None:
                _current.close()
            _current = link.Link(
                url, conductor=conf.upgrade_levels.conductor, agent=conf.upgrade_levels.agent
            )
        return _current
