# SPDX-License-Identifier: Apache-2.0
"""A conductor and an agent that sign what they say, with the database and real keys."""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg

from cyborg import rpc
from cyborg.agent import host_signer
from cyborg.conductor import deployment_signer, endpoint
from cyborg.rpc import client, signing

#: Long enough for a busy machine.
PATIENCE = 120
HOST = "host-1"


class Steps:
    """The host steps that an agent has carried out."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def host_step(self, context: dict[str, Any], step: dict[str, Any], wait: float) -> None:
        self.done.append(step["action"])

    def program(
        self, context: dict[str, Any], step: dict[str, Any], wait: float
    ) -> rpc.ProgramAnswer:
        self.done.append("program")
        return rpc.ProgramAnswer(function=None, verified_by="none", report_counter=1)


class Answering:
    """An agent that answers each question with the same, or raises that."""

    target = messaging.Target(version=rpc.VERSION)

    def __init__(self, answer: object = None) -> None:
        self.answer = answer

    def host_step(self, context: dict[str, Any], step: dict[str, Any], wait: float) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    program = host_step


@contextlib.contextmanager
def answering(conf: cfg.ConfigOpts, host: str, answer: object = None) -> Iterator[Answering]:
    """While the block runs, such an agent is that of the host."""
    agent = Answering(answer)
    server = rpc._server(conf, client.agent_topic(host), "_", agent)
    server.start()
    try:
        assert server._started.wait(PATIENCE)
        yield agent
    finally:
        server.stop()


def new_key(path: pathlib.Path) -> str:
    """Make the file of a private key; its public part."""
    path.write_bytes(signing.make_private())
    return signing.public_text(signing.load(path))


def require(conf: cfg.ConfigOpts, folder: pathlib.Path) -> None:
    """Let conductors and agents need signatures, and have the keys for them."""
    public = new_key(folder / "conductor.pem")
    conf.set_override("signing_key_file", str(folder / "conductor.pem"), group="conductor")
    conf.set_override("conductor_public_keys", [public], group="agent")
    conf.set_override("require_host_keys", True, group="agent")


@contextlib.contextmanager
def serving(conf: cfg.ConfigOpts) -> Iterator[Steps]:
    """Both services receive messages and sign, as their commands let them."""
    steps = Steps()
    ours = deployment_signer.DeploymentSigner(conf)
    own = host_signer.HostSigner(conf)
    own.start()
    ours.start()
    kicked = threading.Event()
    receiving = [
        rpc.conductor_server(conf, endpoint.ConductorEndpoint(conf, kicked.set)),
        rpc.agent_server(conf, HOST, steps),
    ]
    rpc.use_signer(rpc.CONDUCTOR, ours)
    rpc.use_signer(rpc.HOST, own)
    for server in receiving:
        server.start()
    try:
        assert all(server._started.wait(PATIENCE) for server in receiving)
        yield steps
    finally:
        for server in receiving:
            server.stop()
        rpc.use_signer(rpc.CONDUCTOR, None)
        rpc.use_signer(rpc.HOST, None)


def ask(
    conf: cfg.ConfigOpts,
    method: str,
    body: dict[str, Any],
    signature: object = None,
    *,
    host: str | None = None,
    **context: object,
) -> dict[str, Any]:
    """Send a message as it is, to the agent of ``host`` or to a conductor; what comes back."""
    topic = client.CONDUCTOR_TOPIC if host is None else client.agent_topic(host)
    target = messaging.Target(exchange=conf.rpc_exchange, topic=topic, version="2.0")
    sender = messaging.get_rpc_client(rpc._client(conf).transport, target, timeout=PATIENCE)
    if signature is not None:
        context["signature"] = signature
    answer: dict[str, Any] = sender.prepare(version=rpc.VERSION).call(context, method, **body)
    return answer
