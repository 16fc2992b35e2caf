# SPDX-License-Identifier: Apache-2.0
"""The sending side: one transport with its clients."""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_context import context as oslo_context

from cyborg.common import errors
from cyborg.rpc import faults, memory, payloads, signers, signing, version

LOG = logging.getLogger(__name__)

CONDUCTOR_TOPIC = "cyborg-conductor"
AGENT_TOPIC = "cyborg-agent"
#: A server's queue beside that of its topic, to which nobody sends. No host's name ends like that.
AGENT_SERVER = "_"

#: A topic that no queue is bound to.
_UNBOUND = "cyborg-nobody"

#: The method of oslo.messaging's driver that names the queue of replies.
_NAME_REPLIES = "_get_reply_queue_name"

#: Seconds without a sign of life after which a service that carries out a call counts as dead.
SILENCE = 6
#: Seconds a report may take to be stored, as long as the conductor sends signs of life.
_REPORT_TIMEOUT = 120
#: Seconds a permit to write is waited for; a later one would hardly be good any more. What is in
#: use is waited for as long.
_PERMIT_TIMEOUT = 8
#: Seconds a call waits for this process's first connection to the broker.
CONNECT_WAIT = 5.0
_RECONNECT_PAUSE = 1.0
_CLOSE_GRACE = 2.0


def agent_topic(host: str) -> str:
    """The topic of the agent of ``host``. Agents share none: who has a queue may delete it."""
    return f"{AGENT_TOPIC}.{host}"


class RpcClient:
    """A transport with its clients. It opens no connection before something is sent.

    ``replies_of`` is the host whose agent this is, if it is one.
    """

    def __init__(
        self, url: messaging.TransportURL, conf: cfg.ConfigOpts, replies_of: str | None
    ) -> None:
        self._in_memory = url.transport == "fake"
        if not self._in_memory:
            from cyborg.rpc import intake  # noqa: PLC0415 - it loads kombu

            intake.install(cfg.CONF)
        # oslo.messaging reads its options from the global configuration, whatever it is given. In
        # a service there is no other.
        self.transport = messaging.get_rpc_transport(cfg.CONF, url=url)
        if self._in_memory:
            memory.deliver_at_once(self.transport, url)
        if replies_of is not None and not self._in_memory:
            _name_replies(self.transport, replies_of)
        self.url = str(url)
        self.exchange = conf.rpc_exchange
        pins = conf.upgrade_levels
        self._conductor = self._client(CONDUCTOR_TOPIC, pins.conductor or version.VERSION)
        self._agent = self._client(AGENT_TOPIC, pins.agent or version.VERSION)
        self._lock = threading.Lock()
        self._kick_wanted = False
        self._kicker: threading.Thread | None = None
        self._connecting: threading.Thread | None = None
        self._connected = threading.Event()
        self._closed = threading.Event()
        if self._in_memory:
            self._connected.set()

    def kick(self) -> None:
        """Cast a kick from a thread: even with ``retry=0`` a cast waits for a silent broker."""
        with self._lock:
            self._kick_wanted = True
            # A thread does not survive a fork of the process; its object does.
            if self._kicker is None or not self._kicker.is_alive():
                self._kicker = threading.Thread(
                    target=self._cast_kicks, name="rpc-kick", daemon=True
                )
                self._kicker.start()

    def check(self) -> None:
        """Send a message to no receiver over the connections that other messages use.

        :raises BrokerUnreachable: the broker does not take it
        """
        if self._in_memory:
            return
        try:
            self._conductor.prepare(topic=_UNBOUND, retry=0).cast({}, "hello")
        except messaging.MessageUndeliverable:
            return
        except Exception as exc:
            raise faults.BrokerUnreachable(f"the message broker cannot be reached: {exc}") from exc

    def report(
        self, method: str, report: payloads.HostReport | payloads.UnchangedReport
    ) -> Mapping[str, Any]:
        """The answer of a conductor to a report."""
        client = self._conductor.prepare(
            timeout=_REPORT_TIMEOUT, call_monitor_timeout=SILENCE, retry=1
        )
        said = signing.Said(report.host, method, {"report": report.to_wire()})
        return self._call(client, "a conductor", signers.HOST, said)

    def ask(
        self, method: str, request: payloads.WriteRequest | payloads.HeldRequest
    ) -> Mapping[str, Any]:
        """The answer of a conductor to a question of a host."""
        client = self._conductor.prepare(timeout=_PERMIT_TIMEOUT, retry=1)
        said = signing.Said(request.host, method, {"request": request.to_wire()})
        return self._call(client, "a conductor", signers.HOST, said)

    def order(
        self, method: str, host: str, step: payloads.HostStep | payloads.ProgramStep, wait: float
    ) -> Mapping[str, Any]:
        """The answer of an agent to a step that it is to run."""
        client = self._agent.prepare(
            topic=agent_topic(host), timeout=wait + SILENCE, call_monitor_timeout=SILENCE, retry=1
        )
        said = signing.Said(host, method, {"step": step.to_wire(), "wait": wait})
        return self._call(client, f"the agent of host {host}", signers.CONDUCTOR, said)

    def close(self) -> None:
        """Close every connection. One that waits for a broker that is down is left open."""
        self._closed.set()
        closing = threading.Thread(target=self.transport.cleanup, name="rpc-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_GRACE)

    def _client(self, topic: str, version_cap: str) -> Any:
        # at_least_once: a message that no queue takes is an error at once, not a time-out.
        return messaging.get_rpc_client(
            self.transport,
            messaging.Target(exchange=self.exchange, topic=topic, version=version.LEAST),
            version_cap=version_cap,
            transport_options=messaging.TransportOptions(at_least_once=True),
        )

    def _cast_kicks(self) -> None:
        while True:
            with self._lock:
                if not self._kick_wanted:
                    self._kicker = None
                    return
                self._kick_wanted = False
            try:
                self._conductor.prepare(retry=0).cast({}, "kick")
            except Exception as exc:  # noqa: BLE001 - after any error the loop finds the work
                LOG.warning("No conductor was told of new work; it will look by itself: %s", exc)

    def _call(self, client: Any, receiver: str, side: str, said: signing.Said) -> Mapping[str, Any]:
        self._await_connection()
        signature = signers.sign(side, said)

        def check(answer: Mapping[str, Any], answered_by: object) -> None:
            """Raise HostUnreachable if it is not the receiver that says it."""
            try:
                signers.check(side, signing.answer_to(said, signature, answer), answered_by)
            except signing.MessageRefused as exc:
                raise faults.HostUnreachable(f"the answer of {receiver} is refused: {exc}") from exc

        try:
            with _failures_of(receiver):
                answer = client.call(_context(signature), said.method, **said.body)
        except faults.BadMessage as exc:
            # A failure that the receiver sends has no signature.
            if isinstance(exc.__cause__, messaging.RemoteError):
                check({}, None)
            raise
        if not isinstance(answer, dict):
            check({}, None)
            raise faults.BadMessage(f"{receiver} sent an answer that is not a dictionary")
        answered_by = answer.pop(signers.FIELD, None)
        check(answer, answered_by)
        return answer

    def _await_connection(self) -> None:
        """Wait a little for the connection over which answers come.

        oslo.messaging makes it at the first call, and waits for it without limit. Such a call would
        be sent when the broker comes back, long after its caller gave up.

        :raises BrokerUnreachable: there is no connection in time
        """
        with self._lock:
            connecting = self._connecting is not None and self._connecting.is_alive()
            if not connecting and not self._connected.is_set():
                self._connecting = threading.Thread(
                    target=self._connect, name="rpc-connect", daemon=True
                )
                self._connecting.start()
        if not self._connected.wait(CONNECT_WAIT):
            raise faults.BrokerUnreachable("the message broker cannot be reached")

    def _connect(self) -> None:
        """Make the connection with a call to no receiver."""
        unbound = self._conductor.prepare(topic=_UNBOUND, timeout=1, retry=0)
        while not self._closed.is_set():
            try:
                unbound.call({}, "hello")
            except (messaging.MessageUndeliverable, messaging.MessagingTimeout):
                self._connected.set()
                return
            except Exception as exc:  # noqa: BLE001 - any error of any library below
                LOG.warning("Cannot reach the message broker: %s", exc)
                self._closed.wait(_RECONNECT_PAUSE)


def _name_replies(transport: Any, host: str) -> None:
    """Name the queue of replies by its host, so that a broker can keep it from other hosts.

    The library's own way needs a file in /dev/shm, which any user of the host could make before.

    :raises Misconfigured: the library does not name it where that can be changed
    """
    driver = transport._driver  # noqa: SLF001 - there is no option for it
    if not hasattr(driver, _NAME_REPLIES):
        raise errors.Misconfigured(
            "The installed oslo.messaging names the queue of replies in a way that Cyborg cannot "
            "change, so a broker cannot keep it from other hosts; install an older release."
        )

    def name() -> str:
        return f"reply_{host}:{uuid.uuid4().hex}"

    setattr(driver, _NAME_REPLIES, name)


def _context(signature: dict[str, Any] | None) -> dict[str, Any]:
    """The context of a message: the request id of the present one, and a signature."""
    current = oslo_context.get_current()
    context = {"request_id": current.global_id} if current else {}
    return context if signature is None else {**context, signers.FIELD: signature}


@contextlib.contextmanager
def _failures_of(receiver: str) -> Iterator[None]:
    try:
        yield
    except messaging.MessageUndeliverable as exc:
        raise faults.HostUnreachable(f"{receiver} is not connected to the message broker") from exc
    except messaging.MessagingTimeout as exc:
        raise faults.HostUnreachable(f"{receiver} does not answer") from exc
    except (messaging.RPCVersionCapError, messaging.UnsupportedVersion) as exc:
        raise faults.TooOld(f"{receiver} is of a release that cannot do this: {exc}") from exc
    except messaging.RemoteError as exc:
        if exc.exc_type == messaging.UnsupportedVersion.__name__:
            raise faults.TooOld(
                f"{receiver} is of a release that cannot do this: {exc.value}"
            ) from exc
        raise faults.BadMessage(f"{receiver} failed: {exc.exc_type}: {exc.value}") from exc
    except Exception as exc:
        raise faults.BrokerUnreachable(f"the message broker cannot be reached: {exc}") from exc
