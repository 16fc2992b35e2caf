# SPDX-License-Identifier: Apache-2.0
"""A host with a broker user and a key of its own, but hostile code, attacks another host.

What the broker refuses is in ``test_broker_permissions``. These messages pass it: reports and
questions in the name of the other host, orders to its agent and answers in its name through the
default exchange, and reports of its own that reach beyond it. Each is refused, changes nothing, and
is seen: by a counter, a line of the log, and what is shown with the host.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import itertools
import pathlib
import uuid
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import amqp
import oslo_messaging as messaging
import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, rpc
from cyborg.db import models
from cyborg.rpc import client, signing
from cyborg.tests import full_payloads, hosts, signed
from cyborg.tests.hostile_host import EVIL, MINUTE, SLOW, Keys, refusals
from cyborg.tests.logs import ours_of
from cyborg.tests.mutants import HEADERS, connect, received, sealed
from cyborg.tests.signed import HOST, PATIENCE

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("database")]

HOUR = 60 * MINUTE
#: How the hostile code signs: the wire form of what it puts beside its message.
Wire = Any


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
    client._name_replies(transport, EVIL)
    target = messaging.Target(
        exchange="amq.topic", topic=client.CONDUCTOR_TOPIC, version=rpc.VERSION
    )
    sender = messaging.get_rpc_client(transport, target, timeout=PATIENCE)

    def send(said: signing.Said, signature: Wire) -> dict[str, Any]:
        answer: dict[str, Any] = sender.call({"signature": signature}, said.method, **said.body)
        return answer

    yield send
    transport.cleanup()


class DefaultExchange:
    """Sends to any queue, as the broker cannot forbid, and reads the answers."""

    def __init__(self, connection: amqp.Connection) -> None:
        self._channel = connection.channel()
        self._reply = f"reply_{EVIL}:{uuid.uuid4().hex}"
        self._channel.queue_declare(self._reply, auto_delete=False)

    def send(self, said: signing.Said, signature: Wire) -> dict[str, Any]:
        """Order a step of the other host."""
        message = {
            "method": said.method,
            "args": said.body,
            "version": rpc.VERSION,
            "_msg_id": uuid.uuid4().hex,
            "_unique_id": uuid.uuid4().hex,
            "_reply_q": self._reply,
            "_context_signature": signature,
        }
        self._publish(f"cyborg-agent.{HOST}", message)
        # The agent may say first that it is alive.
        while (answer := received(self._channel, self._reply)).get("result") is None:
            pass
        result: dict[str, Any] = answer["result"]
        return result

    def answer(self, question: dict[str, Any], answer: object) -> None:
        """Answer a question that was asked of another host."""
        message = {
            "result": answer,
            "failure": None,
            "ending": True,
            "_msg_id": question["_msg_id"],
            "_unique_id": uuid.uuid4().hex,
        }
        self._publish(question["_reply_q"], message)

    def _publish(self, queue: str, message: dict[str, Any]) -> None:
        sent = amqp.Message(sealed(message), **HEADERS)
        self._channel.basic_publish(sent, "", queue)


@pytest.fixture
def to_agent(evil_url: str) -> Iterator[DefaultExchange]:
    with connect(evil_url) as connection:
        yield DefaultExchange(connection)


def known_of_victim() -> list[object]:
    """What the database has of the other host and of who speaks for it, and every device."""
    with db.reader() as session:
        host = session.scalars(sa.select(models.Host).where(models.Host.name == HOST)).one()
        keys = sa.select(models.HostKey).where(models.HostKey.host_name == HOST)
        key = session.scalars(keys.order_by(models.HostKey.id)).all()
        rows = [
            session.scalars(sa.select(models.Deployable.uuid)).all(),
            session.scalars(sa.select(models.AttachHandle.uuid)).all(),
        ]
    facts = (host.node, host.report_started, host.report_counter, host.down)
    return [facts, [(each.fingerprint, each.counter, each.revoked_ms) for each in key], rows]


@contextlib.contextmanager
def seen(
    caplog: pytest.LogCaptureFixture, said: signing.Said, name: str, *, shown: bool = True
) -> Iterator[None]:
    """This one refusal is counted and logged, and shown with the host whose name is used."""
    with db.writer() as session:
        db.update(session, models.Host, refused=None, refused_ms=None)
    caplog.clear()
    before = refusals()
    yield
    assert refusals() == before + 1, name
    lines = [each.getMessage() for each in ours_of(caplog) if each.levelname == "WARNING"]
    begin = f"Refused message {said.method!r} of host {said.host!r}: "
    (sentence,) = (line.removeprefix(begin) for line in lines if line.startswith(begin))
    if shown:
        errors = hosts.errors_of(said.host)
        expected = f": a message in its name was refused: {sentence}"
        assert errors["refused-messages"].endswith(expected), name


def questions() -> list[signing.Said]:
    """A report that empties the other host, as a whole and as a digest; a leave to write; and what
    guests of the other host have.
    """
    empty = hosts.report()
    wire = {"report": empty.to_wire()}
    digest = {"report": empty.unchanged().to_wire()}
    asked = {"request": dataclasses.replace(full_payloads.write_request(), host=HOST).to_wire()}
    held = {"request": rpc.HeldRequest(host=HOST).to_wire()}
    return [
        signing.Said(HOST, "report", wire),
        signing.Said(HOST, "report_unchanged", digest),
        signing.Said(HOST, "permit_write", asked),
        signing.Said(HOST, "held_handles", held),
    ]


def orders() -> list[signing.Said]:
    step = {"step": full_payloads.step().to_wire(), "wait": PATIENCE}
    program = {"step": full_payloads.program_step().to_wire(), "wait": PATIENCE}
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
            name = f"{said.method} with {what}"
            with seen(caplog, said, name):
                answer = to_conductor(said, signature)
            assert answer.keys() - {"signature"} == {"failed"}, name
            assert known_of_victim() == before, name
            count += 1
        # What the host has said itself counts once.
        true = keys.true(said, of_conductor=False)
        to_conductor(said, true)
        before = known_of_victim()
        with seen(caplog, said, "once more"):
            assert "was taken already" in to_conductor(said, true)["failed"], said.method
        assert known_of_victim() == before
        count += 1
    assert count == 68


def test_no_order_is_obeyed_that_no_conductor_gave(
    keys: Keys,
    steps: signed.Steps,
    to_agent: DefaultExchange,
    caplog: pytest.LogCaptureFixture,
) -> None:
    count = 0
    for said in orders():
        for what, signature in attacks(keys, said, of_conductor=True):
            name = f"{said.method} with {what}"
            with seen(caplog, said, name, shown=False):
                assert "running" in to_agent.send(said, signature), name
            assert steps.done == [], name
            count += 1
    for said in orders():
        # Overheard, and sent again.
        true = keys.true(said, of_conductor=True)
        to_agent.send(said, true)
        done = list(steps.done)
        with seen(caplog, said, "once more", shown=False):
            assert "was taken already" in to_agent.send(said, true)["running"]
        assert steps.done == done
        count += 1
    assert steps.done == ["prepare", "program"]
    assert count == 34


@pytest.fixture
def asked_of_slow(vhost: str, evil_url: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """The next question to an agent that has not answered yet. Others know what it is asked."""
    queue = f"cyborg-agent.{SLOW}"
    with connect(vhost) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, auto_delete=False)
        channel.queue_bind(queue, "amq.topic", queue)
        yield lambda: received(channel, queue)


def done_answer(method: str) -> dict[str, Any]:
    """That what was asked is done."""
    return full_payloads.program_answer().to_wire() if method == "program" else {}


def false_answers(
    keys: Keys, said: signing.Said, asked: dict[str, Any]
) -> Iterator[tuple[str, object]]:
    """Every answer with which a host answers for another one, by a name for it."""
    answer = done_answer(said.method)
    told = signing.answer_to(said, asked, answer)
    earlier = signing.answer_to(said, asked | {"counter": asked["counter"] - 1}, answer)
    other_answer = {"failed": "no", "written": False}
    other_question = dataclasses.replace(said, method="host_step and program")
    yield "no answer", None
    yield "a text", "done"
    yield "no signature", answer
    yield "a failure without a signature", other_answer
    yield "going on without a signature", {"running": "it goes on"}
    truly = functools.partial(keys.forge, key="slow", sender=SLOW)
    for what, signature in {
        "a text as signature": "trust me",
        "its own": keys.forge(told, sender=EVIL),
        "its own, as the other": keys.forge(told, sender=SLOW),
        "that of a new key": keys.forge(told, key="new", sender=SLOW),
        "that of a key that was revoked": keys.forge(told, key="slow and stolen", sender=SLOW),
        "that of another host": keys.true(told, of_conductor=False),
        "that of an earlier answer": truly(earlier),
        "that of an answer to nothing": truly(signing.answer_to(said, None, answer)),
        "that of another answer": truly(signing.answer_to(said, asked, other_answer)),
        "that of another question": truly(signing.answer_to(other_question, asked, answer)),
        "that of another host's answer": truly(dataclasses.replace(told, host=EVIL)),
        "that of the question": asked,
        "one of long ago": truly(told, off=-HOUR),
        "one of the future": truly(told, off=HOUR),
    }.items():
        yield what, {**answer, "signature": signature}


def test_no_answer_of_another_host_is_believed(
    conf: cfg.ConfigOpts,
    keys: Keys,
    asked_of_slow: Callable[[], dict[str, Any]],
    to_agent: DefaultExchange,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Even if the hostile host knew what nobody can guess: the id of the question."""
    hosts.apply(hosts.device("x", hosts.deployable(f"{SLOW}_x")), host=SLOW)
    step, program = full_payloads.step(), full_payloads.program_step()
    asks: dict[str, Callable[[], object]] = {
        "host_step": lambda: rpc.run_host_step(conf, SLOW, step, PATIENCE),
        "program": lambda: rpc.run_program(conf, SLOW, program, PATIENCE),
    }
    count = 0
    with futures.ThreadPoolExecutor(1) as conductor:
        for method, ask in asks.items():
            for number in itertools.count():
                waiting = conductor.submit(ask)
                question = asked_of_slow()
                said = signing.Said(SLOW, method, question["args"])
                asked = question["_context_signature"]
                found = list(false_answers(keys, said, asked))
                if number == len(found):
                    # The true one is.
                    told = signing.answer_to(said, asked, done_answer(method))
                    true = keys.forge(told, key="slow", sender=SLOW)
                    to_agent.answer(question, {**done_answer(method), "signature": true})
                    waiting.result(PATIENCE)
                    break
                what, answer = found[number]
                name = f"{method} answered with {what}"
                with seen(caplog, signing.answer_to(said, asked, {}), name):
                    to_agent.answer(question, answer)
                    with pytest.raises(rpc.HostUnreachable, match="is refused"):
                        waiting.result(PATIENCE)
                count += 1
    assert count == 38


def own_report(**changes: Any) -> rpc.HostReport:
    """A report of the hostile host of itself; ``deployable`` are changes of its only one."""
    part = {"name": f"{EVIL}_x"} | changes.pop("deployable", {})
    device = hosts.device("x", hosts.deployable(**part))
    return dataclasses.replace(hosts.report(device, host=EVIL), **changes)


#: What it says of itself, and what is shown of that.
BEYOND: dict[str, tuple[dict[str, Any], str]] = {
    "the node of another": ({"node": hosts.ROOT}, f"belongs to host {HOST}"),
    "a node that has no agent": ({"node": "plain-compute"}, "only if an administrator says so"),
    "a node that is none": ({"node": "a\nb"}, "is not a valid host name"),
    "a start in the future": ({"started": 2**52}, "started in the future"),
    "the deployable of another": ({"deployable": {"name": f"{HOST}_a"}}, "does not begin with"),
    "a name of nobody": ({"deployable": {"name": "root"}}, "does not begin with"),
    "what Nova counts": ({"deployable": {"resource_class": "VCPU"}}, "class 'VCPU' is not"),
    "what disables a node": (
        {"deployable": {"traits": ("COMPUTE_STATUS_DISABLED",)}},
        "trait 'COMPUTE_STATUS_DISABLED' is not",
    ),
    "what shares providers": (
        {"deployable": {"traits": ("MISC_SHARES_VIA_AGGREGATE",)}},
        "trait 'MISC_SHARES_VIA_AGGREGATE' is not",
    ),
}


def test_with_its_own_key_a_host_speaks_for_itself_only(
    conf: cfg.ConfigOpts,
    keys: Keys,
    to_conductor: Callable[[signing.Said, Wire], dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    rpc.report(conf, hosts.report(hosts.card("a")))
    said = signing.Said(EVIL, "report", {"report": hosts.report(host=EVIL).to_wire()})
    assert "failed" not in to_conductor(said, keys.forge(said, sender=EVIL))
    before = known_of_victim()
    for what, (changes, sentence) in BEYOND.items():
        caplog.clear()
        said = signing.Said(EVIL, "report", {"report": own_report(**changes).to_wire()})
        answer = to_conductor(said, keys.forge(said, sender=EVIL))
        assert known_of_victim() == before, what
        shown = hosts.errors_of(EVIL)
        if "deployable" in changes:
            # That device is left out.
            assert sentence in shown[hosts.DRIVER], what
        else:
            assert sentence in answer["failed"], what
            assert sentence in shown["refused-messages"], what
            assert f"Refused a report of host '{EVIL}'" in caplog.text, what
    # The other host's administrator sees it, too.
    shown = hosts.errors_of(HOST)
    assert shown["refused-messages"].endswith(f"Z: host {EVIL} claims the node of this one")
    said = signing.Said(EVIL, "report", {"report": own_report().to_wire()})
    for off in (-HOUR, HOUR):
        with seen(caplog, said, "another time"):
            answer = to_conductor(said, keys.forge(said, sender=EVIL, off=off))
        assert "clock" in answer["failed"]
    assert known_of_victim() == before
    # The true report of the same device is taken.
    assert "failed" not in to_conductor(said, keys.forge(said, sender=EVIL))
    # It does not wipe its traces with that.
    assert hosts.errors_of(EVIL).keys() == {"refused-messages"}
    assert f"{EVIL}_x" in {row.name for row in hosts.deployables()}
