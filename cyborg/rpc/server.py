# SPDX-License-Identifier: Apache-2.0
"""The receiving side: the endpoints on the wire, and a server that waits for its broker."""

from __future__ import annotations

import functools
import inspect
import logging
import re
import threading
from collections.abc import Callable
from typing import Any, Protocol

import oslo_messaging as messaging
from oslo_context import context as oslo_context
from oslo_messaging import opts

from cyborg.common import errors
from cyborg.rpc import faults, lines, payloads, signers, signing, version

LOG = logging.getLogger(__name__)

_Document = dict[str, Any]

_RECONNECT_PAUSE = 1.0
_STOP_GRACE = 10.0
_REQUEST_ID = re.compile(r"req-[0-9a-fA-F-]{1,60}")


class ConductorHandlers(Protocol):
    """The methods of a conductor that messages call."""

    def report(self, context: _Document, report: _Document) -> None:
        """Store a host report, and commit it."""

    def report_unchanged(self, context: _Document, report: _Document) -> bool:
        """Note that the host's report is the stored one; False if another is stored."""

    def kick(self, context: _Document) -> None:
        """Look for work now."""

    def permit_write(self, context: _Document, request: _Document) -> payloads.WritePermit:
        """Say whether a host may write a deployable now."""

    def held_handles(self, context: _Document, request: _Document) -> dict[str, str]:
        """The ARQ of each attach handle of a host that is in use, by the handle's uuid."""


class AgentEndpoint(Protocol):
    """The methods of an agent that messages call."""

    def host_step(self, context: _Document, step: _Document, wait: float) -> str | None:
        """Run a step; return the secret of the handle, if it has one.

        :raises HostStepFailed: the driver refused
        :raises HostStepRunning: it is not done after ``wait`` seconds and goes on
        """

    def program(self, context: _Document, step: _Document, wait: float) -> payloads.ProgramAnswer:
        """Load a bitstream into a deployable.

        :raises ProgramFailed: it is not loaded
        :raises HostStepRunning: it is not done after ``wait`` seconds and goes on
        """


class ConductorMethods:
    """The conductor's endpoint on the wire."""

    target = messaging.Target(version=version.VERSION)

    def __init__(self, endpoint: ConductorHandlers) -> None:
        self._endpoint = endpoint

    def report(self, context: _Document, report: _Document) -> _Document:
        """Store a host report."""
        store = functools.partial(self._endpoint.report, context, report)
        return _answer_host(context, "report", {"report": report}, store)

    def report_unchanged(self, context: _Document, report: _Document) -> _Document:
        """Note that the host's report is the stored one."""

        def note() -> _Document:
            return {"stored": self._endpoint.report_unchanged(context, report)}

        return _answer_host(context, "report_unchanged", {"report": report}, note)

    def kick(self, context: _Document) -> _Document:
        """Look for work now. That says nothing, so it is not signed."""
        return _outcome(lambda: self._endpoint.kick(context))

    def permit_write(self, context: _Document, request: _Document) -> _Document:
        """Say whether a host may write a deployable now."""

        def permit() -> _Document:
            return self._endpoint.permit_write(context, request).to_wire()

        return _answer_host(context, "permit_write", {"request": request}, permit)

    def held_handles(self, context: _Document, request: _Document) -> _Document:
        """Say which handles of a host are in use."""

        def find() -> _Document:
            return {"held": self._endpoint.held_handles(context, request)}

        return _answer_host(context, "held_handles", {"request": request}, find)


def _answer_host(
    context: _Document, method: str, body: _Document, answer: Callable[[], _Document | None]
) -> _Document:
    """The answer to a host, which the only argument of the message names."""
    (said,) = body.values()
    return _answer(context, signers.CONDUCTOR, signing.Said(_host_of(said), method, body), answer)


def _host_of(said: object) -> str:
    """The host that a report or request names; none at all if it is no text."""
    host = said.get("host") if isinstance(said, dict) else None
    return host if isinstance(host, str) else ""


class AgentMethods:
    """The endpoint of the agent of ``host`` on the wire."""

    target = messaging.Target(version=version.VERSION)

    def __init__(self, endpoint: AgentEndpoint, host: str) -> None:
        self._endpoint = endpoint
        self._host = host

    def host_step(self, context: _Document, step: _Document, wait: float) -> _Document:
        """Carry out a step."""
        said = signing.Said(self._host, "host_step", {"step": step, "wait": wait})

        def carry_out() -> _Document:
            key = self._endpoint.host_step(context, step, wait)
            return {} if key is None else {"access_key": key}

        return _answer(context, signers.HOST, said, carry_out)

    def program(self, context: _Document, step: _Document, wait: float) -> _Document:
        """Load a bitstream into a deployable."""
        said = signing.Said(self._host, "program", {"step": step, "wait": wait})

        def program() -> _Document:
            return self._endpoint.program(context, step, wait).to_wire()

        return _answer(context, signers.HOST, said, program)


def _answer(
    context: _Document,
    side: str,
    said: signing.Said,
    method: Callable[[], _Document | None],
) -> _Document:
    """The answer of a method to what was said, signed; nothing is done if that is refused."""
    # For every log line from here on.
    oslo_context.RequestContext(global_request_id=_request_id(context))
    signature = context.get(signers.FIELD)
    try:
        signers.check(side, said, signature)
    except signing.MessageRefused as exc:
        # A conductor takes a step as running, and asks again: it has not failed.
        answer = {"running" if side == signers.HOST else "failed": str(exc)}
        if signature is None:
            # The signature would need a number, and a flood of such messages would use them up.
            return answer
    else:
        answer = _outcome(method)
    answered_by = signers.sign(side, signing.answer_to(said, signature, answer))
    return answer if answered_by is None else {**answer, signers.FIELD: answered_by}


def _request_id(context: _Document) -> str | None:
    """The id of a request, as a message has it. No signature is over it, so it may be anything."""
    found = context.get("request_id")
    return found if isinstance(found, str) and _REQUEST_ID.fullmatch(found) else None


def _outcome(method: Callable[[], _Document | None]) -> _Document:
    """The answer of a method. An error travels as text: the other side may lack its class."""
    try:
        return method() or {}
    except faults.HostStepRunning as exc:
        since = {} if exc.seconds is None else {"seconds": exc.seconds}
        return {"running": str(exc), **since}
    except faults.ProgramFailed as exc:
        return {
            "failed": str(exc),
            "written": exc.written,
            "report_counter": exc.report_counter,
        }
    except errors.CyborgError as exc:
        return {"failed": str(exc)}
    except Exception as exc:
        LOG.exception("A message failed")
        return {"failed": f"{type(exc).__name__}; the log of the service that failed has more"}


class Dispatcher(messaging.RPCDispatcher):
    """Calls methods. What is no call of one is answered and said in one line, without a traceback.

    Whoever may send to a queue may send that, without a signature.
    """

    def dispatch(self, incoming: Any) -> Any:
        """The answer of the method that is called.

        :raises ExpectedException: there is none
        """
        message = incoming.message
        if not any(self._takes(endpoint, message) for endpoint in self.endpoints):
            # The thread that says that a call goes on would never end.
            incoming.client_timeout = None
        try:
            return super().dispatch(incoming)
        except Exception as exc:
            method = str(message.get("method"))
            lines.warn(LOG, "Cannot call %.64r: %s", method, type(exc).__name__)
            LOG.debug("A call failed", exc_info=True)
            raise messaging.ExpectedException from exc
        finally:
            # A thread keeps what it has done last until it has something else to do.
            raw = getattr(message, "_raw_message", None)
            if raw is not None:
                message.clear()
                raw.forget()

    def _takes(self, endpoint: Any, message: _Document) -> bool:
        """True if it has the method of a call, in its version, and with its arguments."""
        method = getattr(endpoint, message["method"], None)
        target = getattr(endpoint, "target", self._default_target)
        if not inspect.ismethod(method) or message["method"].startswith("_"):
            return False
        try:
            inspect.signature(method).bind({}, **message.get("args", {}))
        except TypeError:
            return False
        fits = self._is_compatible(target, message.get("version", "1.0"))
        return bool(fits and self._is_namespace(target, message.get("namespace")))


class RpcServer:
    """Receives messages in a thread, which first waits until there is a broker.

    ``threads`` handle them, where the file does not say another ``executor_thread_pool_size``;
    without it, as many as oslo.messaging's default. Each that was ever busy is kept.
    """

    def __init__(
        self,
        transport: Any,
        target: messaging.Target,
        methods: object,
        *,
        threads: int | None = None,
    ) -> None:
        self._transport = transport
        self._target = target
        self._methods = methods
        self._threads = threads
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rpc-server", daemon=True)

    def start(self) -> None:
        """Begin to receive as soon as the broker can be reached. Returns at once."""
        self._thread.start()

    def stop(self, grace: float = _STOP_GRACE) -> None:
        """Receive no more; wait at most ``grace`` seconds for calls that were received.

        If there has been no broker so far, the library call that waits for it is left alone.
        """
        self._stopping.set()
        if self._started.is_set():
            self._thread.join(grace)

    def _run(self) -> None:
        server = self._start()
        if server is not None:
            self._started.set()
            LOG.info("Serving: %s", self._target.topic)
            self._stopping.wait()
            server.stop()
            server.wait()

    def _start(self) -> Any:
        while not self._stopping.is_set():
            # A server whose start has failed cannot be started again.
            server = messaging.get_rpc_server(self._transport, self._target, [self._methods])
            server.dispatcher = Dispatcher([self._methods], None)
            opts.set_defaults(server.conf, executor_thread_pool_size=self._threads)
            try:
                server.start()
            except Exception:
                LOG.warning("Cannot receive messages yet; trying again", exc_info=True)
                self._stopping.wait(_RECONNECT_PAUSE)
            else:
                return server
        return None
