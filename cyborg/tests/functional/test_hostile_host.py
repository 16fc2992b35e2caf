# SPDX-License-Identifier: Apache-2.0
"""A host with a broker user and a key of its own, but hostile code, attacks another host.

What the broker refuses is in ``test_broker_permissions``. These messages pass it: reports and
questions in the name of the other host, and orders to its agent through the default exchange.
Each is refused, logged and counted, and changes nothing.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import pathlib
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import oslo_messaging as messaging
import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, host_keys, metrics, rpc
from cyborg.agent import keys as agent_keys
from cyborg.conductor import keys as conductor_keys
from cyborg.db import models
from cyborg.rpc import client, signing
from cyborg.tests import hosts, servers, signed
from cyborg.tests.functional import test_broker_permissions as broker
from cyborg.tests.signed import HOST, PATIENCE
from cyborg.tests.unit import test_payloads

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("database")]

EVIL = "evil.example"
MINUTE = 60_000
#: How the hostile code signs: the wire form of what it puts beside its message.
Wire = Any


class Keys:
    """What there is to sign with, and what was signed before."""

    def __init__(self, conf: cfg.ConfigOpts, folder: pathlib.Path) -> None:
        self.victim = agent_keys.HostKeys(conf)
        self.deployment = conductor_keys.DeploymentKeys(conf)
        evil, stranger, stolen = (folder / f"{name}.pem" for name in ("evil", "new", "stolen"))
        host_keys.enrol(HOST, self.victim.public())
        self.evil_public = signed.new_key(evil)
        host_keys.enrol(EVIL, self.evil_public)
        signed.new_key(stranger)
        stolen_public = signed.new_key(stolen)
        host_keys.enrol(HOST, stolen_public)
        host_keys.revoke(HOST, signing.fingerprint(stolen_public))
        self._private = {"evil": evil, "new": stranger, "stolen": stolen}
        self._counter = itertools.count(time.time_ns() // 1_000_000 + MINUTE)

    def forge(
        self, said: signing.Said, *, key: str = "evil", sender: str = HOST, off: int = 0
    ) -> dict[str, Any]:
        """A signature that only looks like that of the other side."""
        now_ms = time.time_ns() // 1_000_000 + off
        private = signing.load(self._private[key])
        counter = next(self._counter)
        return signing.sign(
            private, said, sender=sender, counter=counter, time_ms=now_ms
        ).to_wire()

    def true(self, said: signing.Said, *, of_conductor: bool) -> dict[str, Any]:
        """The other side's own signature, which was overheard."""
        signature = (self.deployment if of_conductor else self.victim).sign(said)
        assert signature is not None
        return signature.to_wire()


Attack = Callable[[Keys, signing.Said, dict[str, Any]], Wire]


def other(said: signing.Said, **changes: object) -> signing.Said:
    return dataclasses.replace(said, **changes)  # type: ignore[arg-type]


#: Of a message and its true signature: what the hostile code sends beside the message.
FORGED: dict[str, Attack] = {
    "no signature": lambda _keys, _said, _true: None,
    "a text": lambda _keys, _said, _true: "trust me",
    "half of one": lambda _keys, _said, true: {"key": true["key"]},
    "its own": lambda keys, said, _true: keys.forge(said, sender=EVIL),
    "its own, as the other": lambda keys, said, _true: keys.forge(said),
    "its own, with the name of the true key": lambda keys, said, true: keys.forge(said)
    | {"key": true["key"]},
    "that of a new key": lambda keys, said, _true: keys.forge(said, key="new"),
    "that of a key that was revoked": lambda keys, said, _true: keys.forge(said, key="stolen"),
    "a later counter": lambda _keys, _said, true: true | {"counter": true["counter"] + 5},
    "a later time": lambda _keys, _said, true: true | {"time_ms": true["time_ms"] + 5},
    "another sender": lambda _keys, _said, true: true | {"sender": EVIL},
    "a changed value": lambda _keys, _said, true: true
    | {"value": base64.b64encode(b"\0" * 64).decode()},
}
#: Of the other side's true signature of something else.
MISUSED: dict[str, Callable[[signing.Said], signing.Said]] = {
    "another method": lambda said: other(said, method="kick"),
    "an answer": lambda said: signing.answer_to(said, None, {}),
    "another host": lambda said: other(said, host=EVIL),
    "another body": lambda said: other(said, body={**said.body, "more": 1}),
}


@pytest.fixture
def evil_url(conf: cfg.ConfigOpts, tmp_path: pathlib.Path) -> Iterator[str]:
    """The broker's account of the hostile host; conductors and agents need signatures."""
    signed.require(conf, tmp_path)
    with servers.new_vhost() as url:
        rpc.use_memory(conf)
        conf.set_override("transport_url", url)
        rpc.close()
        with servers.user_of_agent(url, EVIL) as own:
            yield own
        rpc.close()


@pytest.fixture
def steps(conf: cfg.ConfigOpts, evil_url: str) -> Iterator[signed.Steps]:
    with signed.serving(conf) as done:
        yield done


@pytest.fixture
def keys(conf: cfg.ConfigOpts, steps: signed.Steps, tmp_path: pathlib.Path) -> Keys:
    return Keys(conf, tmp_path)


@pytest.fixture
def to_conductor(evil_url: str) -> Iterator[Callable[[signing.Said, Wire], dict[str, Any]]]:
    """Sends a message to conductors with the account of the hostile host."""
    transport = messaging.get_rpc_transport(cfg.CONF, url=evil_url)
    target = messaging.Target(exchange="cyborg", topic=client.CONDUCTOR_TOPIC, version="2.2")
    sender = messaging.get_rpc_client(transport, target, timeout=PATIENCE)

    def send(said: signing.Said, signature: Wire) -> dict[str, Any]:
        answer: dict[str, Any] = sender.call({"signature": signature}, said.method, **said.body)
        return answer

    yield send
    transport.cleanup()


class DefaultExchange:
    """Sends to any queue, as the broker cannot forbid, and reads the answers."""

    def __init__(self, url: str) -> None:
        self._connection = broker.connect(url)
        self._channel = self._connection.channel()
        self._reply = f"reply_{uuid.uuid4().hex}"
        self._channel.queue_declare(self._reply, auto_delete=False)

    def close(self) -> None:
        self._connection.close()

    def send(self, said: signing.Said, signature: Wire) -> dict[str, Any]:
        """Order a step of the other host."""
        message = {
            "method": said.method,
            "args": said.body,
            "version": "2.1",
            "_msg_id": uuid.uuid4().hex,
            "_unique_id": uuid.uuid4().hex,
            "_reply_q": self._reply,
            "_context_signature": signature,
        }
        envelope = json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps(message)})
        sent = amqp.Message(
            envelope, content_type="application/json", content_encoding="utf-8"
        )
        self._channel.basic_publish(sent, "", f"cyborg-agent.{HOST}")
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = self._channel.basic_get(self._reply, no_ack=True)
            if found is not None:
                answer = json.loads(json.loads(found.body)["oslo.message"])
                if answer.get("result") is not None:
                    result: dict[str, Any] = answer["result"]
                    return result
            time.sleep(0.02)
        raise AssertionError("no answer")


@pytest.fixture
def to_agent(evil_url: str) -> Iterator[DefaultExchange]:
    sender = DefaultExchange(evil_url)
    yield sender
    sender.close()


def refusals() -> float:
    (family,) = metrics.MESSAGES_REFUSED.collect()
    return sum(sample.value for sample in family.samples if sample.name.endswith("_total"))


def known_of_victim() -> list[object]:
    """What the database has of the other host and of who speaks for it."""
    with db.reader() as session:
        host = session.scalars(sa.select(models.Host).where(models.Host.name == HOST)).one()
        key = session.scalars(sa.select(models.HostKey).order_by(models.HostKey.id)).all()
        rows = [
            session.scalars(sa.select(models.Deployable.uuid)).all(),
            session.scalars(sa.select(models.AttachHandle.uuid)).all(),
        ]
    facts = (host.node, host.report_started, host.report_counter, host.down)
    return [facts, [(each.fingerprint, each.counter, each.revoked_ms) for each in key], rows]


def errors_of_victim() -> str:
    with db.reader() as session:
        host = session.scalars(sa.select(models.Host).where(models.Host.name == HOST)).one()
        return host.driver_errors.get("refused-messages", "")


def questions() -> list[signing.Said]:
    """A report that empties the other host, as a whole and as a digest; and a leave to write."""
    empty = hosts.report()
    wire = {"report": empty.to_wire()}
    digest = {"report": empty.unchanged().to_wire()}
    asked = {"request": dataclasses.replace(test_payloads.write_request(), host=HOST).to_wire()}
    return [
        signing.Said(HOST, "report", wire),
        signing.Said(HOST, "report_unchanged", digest),
        signing.Said(HOST, "permit_write", asked),
    ]


def orders() -> list[signing.Said]:
    step = {"step": test_payloads.step().to_wire(), "wait": PATIENCE}
    program = {"step": test_payloads.program_step().to_wire(), "wait": PATIENCE}
    return [signing.Said(HOST, "host_step", step), signing.Said(HOST, "program", program)]


def attacks(keys: Keys, said: signing.Said, *, of_conductor: bool) -> Iterator[tuple[str, Wire]]:
    """Every attack with this message, by a name for it."""
    true = keys.true(said, of_conductor=of_conductor)
    for what, forge in FORGED.items():
        yield what, forge(keys, said, true)
    for what, misuse in MISUSED.items():
        yield f"that of {what}", keys.true(misuse(said), of_conductor=of_conductor)


def test_nothing_is_believed_in_the_name_of_another_host(
    conf: cfg.ConfigOpts,
    keys: Keys,
    to_conductor: Callable[[signing.Said, Wire], dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    rpc.report(conf, hosts.report(hosts.card("a")))
    before, count = known_of_victim(), 0
    for said in questions():
        for what, signature in attacks(keys, said, of_conductor=False):
            name, seen = f"{said.method} with {what}", refusals()
            caplog.clear()
            answer = to_conductor(said, signature)
            assert answer["failed"], name
            assert known_of_victim() == before, name
            assert refusals() == seen + 1, name
            assert f"Refused message '{said.method}' of host '{HOST}'" in caplog.text, name
            assert "was refused" in errors_of_victim(), name
            count += 1
        # What the host has said itself counts once.
        true = keys.true(said, of_conductor=False)
        to_conductor(said, true)
        before = known_of_victim()
        assert "was taken already" in to_conductor(said, true)["failed"], said.method
        assert known_of_victim() == before
        count += 1
    assert count == 51


def test_no_order_is_obeyed_that_no_conductor_gave(
    conf: cfg.ConfigOpts, keys: Keys, steps: signed.Steps, to_agent: DefaultExchange
) -> None:
    count = 0
    for said in orders():
        for what, signature in attacks(keys, said, of_conductor=True):
            name, seen = f"{said.method} with {what}", refusals()
            assert "running" in to_agent.send(said, signature), name
            assert refusals() == seen + 1, name
            assert steps.done == [], name
            count += 1
    for said in orders():
        # Overheard, and sent again.
        true = keys.true(said, of_conductor=True)
        to_agent.send(said, true)
        done = list(steps.done)
        assert "was taken already" in to_agent.send(said, true)["running"]
        assert steps.done == done
        count += 1
    assert steps.done == ["prepare", "program"]
    assert count == 34
