# SPDX-License-Identifier: Apache-2.0
"""Messages between the services: payloads, clients and servers.

A message only carries a report or asks for a step. Nothing is lost with a message: the database has
everything.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg

from cyborg import metrics
from cyborg.common import errors, needs
from cyborg.drivers import value_checks
from cyborg.rpc import client, server
from cyborg.rpc.faults import (
    BadMessage,
    BrokerUnreachable,
    HostStepFailed,
    HostStepRunning,
    HostUnreachable,
    NoPermit,
    ProgramFailed,
    ReportFailed,
    TooOld,
    Unreadable,
    WriteRefused,
)
from cyborg.rpc.payloads import (
    REASONS_MAX,
    HeldRequest,
    HostReport,
    HostStep,
    ProgramAnswer,
    ProgramStep,
    UnchangedReport,
    WritePermit,
    WriteRequest,
    is_host_name,
)
from cyborg.rpc.server import AgentEndpoint, ConductorHandlers, RpcServer
from cyborg.rpc.signers import CONDUCTOR, HOST
from cyborg.rpc.signers import use as use_signer
from cyborg.rpc.signing import AGE_MAX
from cyborg.rpc.version import VERSION

LOG = logging.getLogger(__name__)

#: Messages that a conductor handles at the same time. The default of oslo.messaging is 64, and all
#: those threads are started by and by, though one interpreter does not work on so many reports.
_CONDUCTOR_THREADS = 16

_ACCESS_KEY = re.compile(r"[!-~]{1,255}")

_configuring = threading.Lock()
_current: client.RpcClient | None = None
_replies_of: str | None = None


def use_memory(conf: cfg.ConfigOpts) -> None:
    """Let the services of this process send each other messages in memory."""
    messaging.TransportURL.parse(conf, "fake://")  # registers the option
    conf.set_override("transport_url", "fake://")


def configure(conf: cfg.ConfigOpts, *, replies_of: str | None = None) -> None:
    """Create the transport of ``[DEFAULT] transport_url`` without connecting to anything.

    ``replies_of`` is for agents: the host whose name the queue of their replies has.

    :raises Misconfigured: the option names no transport. The message does not have the URL, which
        has a password
    """
    global _replies_of  # noqa: PLW0603 - one transport a process
    _replies_of = replies_of
    try:
        messaging.TransportURL.parse(conf)  # registers the option
        needs.check(conf)
        _client(conf)
    except cfg.ConfigFileValueError:
        # Another option's, although it is a ValueError too.
        raise
    except (messaging.InvalidTransportURL, ValueError) as exc:
        raise errors.Misconfigured(
            "[DEFAULT] transport_url is not the URL of a message broker; write it like "
            "rabbit://user:password@host:5672/."
        ) from exc
    except messaging.DriverLoadFailure as exc:
        raise errors.Misconfigured(
            f"[DEFAULT] transport_url begins with {exc.driver}, which oslo.messaging does not know."
        ) from exc
    needs.check(conf, "oslo_messaging_rabbit", "oslo_messaging_tracing")


def close() -> None:
    """Close this process's transport."""
    global _current  # noqa: PLW0603 - one transport a process
    with _configuring:
        if _current is not None:
            _current.close()
        _current = None


def check() -> None:
    """Raise BrokerUnreachable if the broker takes no message, however long that takes."""
    if _current is not None:
        _current.check()


def kick() -> None:
    """Ask a conductor to look for work now. Does not wait, and never raises."""
    if _current is None:
        LOG.debug("There is no transport; the conductor will look for work by itself")
        return
    try:
        _current.kick()
    except Exception:
        LOG.exception("Cannot announce new work to a conductor; it will look by itself")


def report(conf: cfg.ConfigOpts, host_report: HostReport) -> None:
    """Have a conductor store a host report, and wait until it is stored.

    :raises ReportFailed: it is not known to be stored
    """
    answer = _reported(conf, "report", host_report)
    if "failed" in answer:
        raise ReportFailed(f"the conductor failed: {answer['failed']}")


def report_unchanged(conf: cfg.ConfigOpts, host_report: UnchangedReport) -> bool:
    """Have a conductor note that a host report is the stored one, without sending the devices.

    False if the report is to be sent whole: another is stored.

    :raises ReportFailed: it is not known whether that is noted
    """
    return bool(_reported(conf, "report_unchanged", host_report).get("stored"))


def _reported(
    conf: cfg.ConfigOpts, method: str, said: HostReport | UnchangedReport
) -> Mapping[str, Any]:
    try:
        return _client(conf).report(method, said)
    except errors.CyborgError as exc:
        raise ReportFailed(str(exc)) from exc


def permit_write(conf: cfg.ConfigOpts, request: WriteRequest) -> float:
    """Ask a conductor for leave to write; return for how many seconds from now it is given.

    :raises WriteRefused: it is not given
    :raises NoPermit: there is no answer, or none that says
    """
    try:
        answer = _client(conf).ask("permit_write", request)
        if "failed" in answer:
            raise NoPermit(answer["failed"])
        permit = WritePermit.from_wire(answer)
    except (BadMessage, HostUnreachable) as exc:
        raise NoPermit(str(exc)) from exc
    if permit.refused is not None:
        raise WriteRefused(permit.refused)
    return permit.seconds


def held_handles(
    conf: cfg.ConfigOpts, host: str, *, by_place: bool = False
) -> dict[str, str] | None:
    """Ask a conductor which handles of a host are in use: their ARQs by their uuids.

    With ``by_place`` it is their instances by their infos.
    None if that is not known now.
    """
    try:
        request = HeldRequest(host=host, by_place=by_place)
        answer = _client(conf).ask("held_handles", request)
    except errors.CyborgError as exc:
        LOG.debug("It is not known which attach handles are in use: %s", exc)
        return None
    held = answer.get("held")
    if not isinstance(held, dict) or not all(isinstance(arq, str) for arq in held.values()):
        LOG.debug("A conductor cannot say which attach handles are in use: %s", answer)
        return None
    return held


def run_host_step(
    conf: cfg.ConfigOpts, host: str, step: HostStep, timeout: float
) -> str | None:
    """Have the agent of ``host`` run a step to its end; the result is the handle's secret.

    :raises HostStepFailed: the driver refused
    :raises HostUnreachable: no answer, or none within ``timeout`` seconds
    :raises BrokerUnreachable: the message broker cannot be reached
    """
    with _observed(step.action):
        try:
            answer = _client(conf).order("host_step", host, step, timeout)
        except BadMessage as exc:
            raise HostStepFailed(str(exc)) from exc
        if "failed" in answer:
            raise HostStepFailed(str(answer["failed"]))
        if "running" in answer:
            seconds = _number(answer.get("seconds"))
            raise HostStepRunning(str(answer["running"]), seconds=seconds)
        return _access_key(answer.get("access_key"))


def _access_key(said: object) -> str | None:
    """The secret in an answer, if there is one.

    :raises HostStepFailed: it is none. What it is then is not said: that may be most of a secret
    """
    if said is None:
        return None
    if not isinstance(said, str) or not _ACCESS_KEY.fullmatch(said):
        raise HostStepFailed("the access key in the agent's answer is not valid")
    return said


def run_program(
    conf: cfg.ConfigOpts, host: str, step: ProgramStep, timeout: float
) -> ProgramAnswer:
    """Have the agent of ``host`` load a bitstream, and wait until it is verified to be there.

    :raises ProgramFailed: it is not loaded
    :raises HostStepRunning: it is not done within ``timeout`` seconds; a second request joins it
    :raises HostUnreachable: no answer
    :raises BrokerUnreachable: the message broker cannot be reached
    """
    with _observed("program"):
        try:
            answer = _client(conf).order("program", host, step, timeout)
            if "failed" in answer:
                # If the answer does not say, the hardware must count as written.
                raise ProgramFailed(
                    str(answer["failed"]),
                    written=answer.get("written", True) is not False,
                    report_counter=_number(answer.get("report_counter")),
                )
            if "running" in answer:
                raise HostStepRunning(str(answer["running"]))
            return ProgramAnswer.from_wire(answer)
        except TooOld as exc:
            raise ProgramFailed(str(exc), written=False) from exc
        except BadMessage as exc:
            raise ProgramFailed(str(exc), written=True) from exc


_STEP_OUTCOMES: dict[type[errors.CyborgError], str] = {
    BrokerUnreachable: "no_broker",
    HostStepRunning: "running",
    HostUnreachable: "unreachable",
}


@contextlib.contextmanager
def _observed(action: str) -> Iterator[None]:
    """Measure a step with its outcome."""
    with metrics.observed(metrics.HOST_STEP_SECONDS, action=action, outcome="done") as seen:
        try:
            yield
        except errors.CyborgError as exc:
            seen["outcome"] = _STEP_OUTCOMES.get(type(exc), "failed")
            raise


def _number(said: object) -> int | None:
    """A count of reports or of seconds in an answer; None if there is none that could be."""
    return said if type(said) is int and 0 <= said <= value_checks.NUMBER_MAX else None


def conductor_server(conf: cfg.ConfigOpts, endpoint: ConductorHandlers) -> RpcServer:
    """The server of a conductor. Each message goes to one of the conductors."""
    methods = server.ConductorMethods(endpoint)
    return _server(conf, client.CONDUCTOR_TOPIC, conf.host, methods, threads=_CONDUCTOR_THREADS)


def agent_server(conf: cfg.ConfigOpts, host: str, endpoint: AgentEndpoint) -> RpcServer:
    """The server of the agent of ``host``."""
    methods = server.AgentMethods(endpoint, host)
    return _server(conf, client.agent_topic(host), client.AGENT_SERVER, methods)


def _server(
    conf: cfg.ConfigOpts, topic: str, name: str, methods: object, *, threads: int | None = None
) -> RpcServer:
    own = _client(conf)
    target = messaging.Target(exchange=own.exchange, topic=topic, server=name)
    return RpcServer(own.transport, target, methods, threads=threads)


def _client(conf: cfg.ConfigOpts) -> client.RpcClient:
    global _current  # noqa: PLW0603 - one transport a process
    with _configuring:
        url = messaging.TransportURL.parse(conf)
        if _current is None or _current.url != str(url):
            if _current is not None:
                _current.close()
            _current = client.RpcClient(url, conf, _replies_of)
        return _current
