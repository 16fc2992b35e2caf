# SPDX-License-Identifier: Apache-2.0
"""A host with an account of the broker, and nothing else, sends what no service sends.

It goes to a conductor, to the agent of another host, and to the queue of replies, with RabbitMQ and
before anybody can look at a signature. Whatever it is: memory stays, one short line is in the log
at most, without a traceback, no thread is held, and who is honest is answered as before.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
import random
import re
import statistics
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import pytest
from oslo_config import cfg

from cyborg import rpc
from cyborg.rpc import client, intake, lines, signers, signing
from cyborg.tests import full_payloads, mutants, signed
from cyborg.tests.hostile_host import EVIL, Keys
from cyborg.tests.mutants import MIB, Mutant, Sender
from cyborg.tests.service import until
from cyborg.tests.signed import HOST, PATIENCE

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("database")]

SEED = int(os.environ.get("CYBORG_TEST_MUTANTS_SEED", "5"))
#: How many mutants by chance there are, besides those that somebody has thought of.
NUMBER = int(os.environ.get("CYBORG_TEST_MUTANTS", "150"))
#: One of so many of the others; 1 for all.
SHARE = int(os.environ.get("CYBORG_TEST_MUTANTS_SHARE", "6"))
#: What one message may take while it is read, and all of them for good.
PEAK, LEFT = 250 * MIB, 60 * MIB
LONGEST_LINE = 500
CALLS = 130


@dataclasses.dataclass
class Site:
    """A conductor and an agent that run, and who attacks them."""

    conf: cfg.ConfigOpts
    keys: Keys
    sender: Sender
    #: True messages, by the queue that they went to.
    said: dict[str, dict[str, Any]]

    def honest(self) -> float:
        """Ask a conductor, and the agent, and get both answers; the seconds that took."""
        begin = time.monotonic()
        assert rpc.held_handles(self.conf, HOST) == {}
        rpc.run_host_step(self.conf, HOST, full_payloads.step(), PATIENCE)
        return time.monotonic() - begin


@pytest.fixture
def site(
    conf: cfg.ConfigOpts, vhost: str, evil_url: str, tmp_path: pathlib.Path
) -> Iterator[Site]:
    with signed.serving(conf):
        sender = Sender(evil_url)
        one = Site(conf, Keys(conf, tmp_path), sender, {})
        one.said = overheard(vhost, one)
        yield one
        sender.close()


def overheard(vhost: str, site: Site) -> dict[str, dict[str, Any]]:
    """What is said to a conductor, to an agent, and to who has asked."""
    connection = mutants.connect(vhost)
    channel = connection.channel()
    queues = (client.CONDUCTOR_TOPIC, client.agent_topic(HOST))
    for queue in queues:
        channel.queue_declare(f"spy {queue}", auto_delete=False)
        channel.queue_bind(f"spy {queue}", "amq.topic", queue)
    site.honest()
    found = {queue: mutants.received(channel, f"spy {queue}") for queue in queues}
    replies = found[client.CONDUCTOR_TOPIC]["_reply_q"]
    # The same question once more, whose answer is for us.
    channel.queue_declare("reply_spy", auto_delete=False)
    asked = mutants.fresh(found[client.CONDUCTOR_TOPIC], _reply_q="reply_spy")
    channel.basic_publish(
        amqp.Message(asked, **mutants.HEADERS), "amq.topic", client.CONDUCTOR_TOPIC
    )
    found[replies] = mutants.received(channel, "reply_spy")
    connection.close()
    return found


def memory(what: str) -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    found = re.search(rf"{what}:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


class Log(logging.Handler):
    """Lines of all loggers, which are those of the services and of the libraries below.

    A connection that another test has left, whose broker is gone, is no part of them.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not str(record.msg).startswith("Connection failed: %s (retrying"):
            self.lines.append(record)

    def check(self, what: str) -> None:
        """Check that each line is one, and short."""
        for record in self.lines:
            text = record.getMessage()
            assert record.exc_info in {None, (None, None, None)}, f"{what}: {text}"
            assert len(text) < LONGEST_LINE, f"{what}: {text:.1000}"
            assert text.isprintable(), f"{what}: {text!r}"
            assert "compromised" not in text or "\\n" in text, f"{what}: {text!r}"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """Every line is kept, also those that are too many a minute."""
    monkeypatch.setattr(lines, "is_seldom", lambda *_given: True)
    monkeypatch.setattr(threading, "excepthook", fail_of_thread)
    handler, root = Log(), logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


def fail_of_thread(given: threading.ExceptHookArgs) -> None:
    logging.getLogger("a thread").error("it has ended", exc_info=given.exc_value)


def attacked(
    site: Site, log: Log, found: list[tuple[str, Mutant]], left: int = LEFT
) -> None:
    """Send each mutant to its queue, and check everything after it."""
    usual = statistics.median(site.honest() for _ in range(5))
    threads, resident = threading.active_count(), memory("VmRSS")
    sent, seen = 0, []
    log.lines.clear()
    for queue, mutant in found:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        taken = site.sender.send(queue, mutant)
        seen.append(site.honest())
        what = f"{mutant.what} to {queue:.20}"
        if not taken:
            continue
        sent += 1
        assert memory("VmHWM") - before < PEAK + 2 * len(mutant.body), what
        log.check(what)
        assert len(log.lines) <= sent, f"{what}: {[one.getMessage() for one in log.lines[-3:]]}"
    assert sent > len(found) / 2
    assert memory("VmRSS") - resident < left
    # Threads of the pool are made by and by.
    assert threading.active_count() < threads + 16 + 64
    assert statistics.median(seen[-20:]) < 3 * usual + 0.2


def test_mutants_of_true_messages(site: Site, log: Log) -> None:
    chance = random.Random(SEED)
    found = []
    for queue, said in site.said.items():
        known = list(mutants.special(said))
        found += [(queue, mutant) for mutant in chance.sample(known, len(known) // SHARE)]
        found += [(queue, mutants.any_of(chance, said)) for _ in range(NUMBER // 3)]
    attacked(site, log, found)


def test_bombs(site: Site, log: Log) -> None:
    found = [(queue, mutant) for mutant in mutants.bombs() for queue in site.said]
    # What the C library keeps of three threads that have read so much, and no more than that.
    attacked(site, log, found, 4 * LEFT)
    attacked(site, log, found[-12:])


def test_only_so_much_is_in_work_at_once(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conductor's threads would each hold one of the largest messages at the same time."""
    begun, ending, truly = threading.Semaphore(0), threading.Event(), signers.check

    def check(side: str, said: signing.Said, signature: object) -> None:
        if said.host == EVIL:
            begun.release()
            assert ending.wait(PATIENCE)
        truly(side, said, signature)

    monkeypatch.setattr(signers, "check", check)
    queue = client.CONDUCTOR_TOPIC
    body = {"request": {"host": EVIL, "x": [{}] * 20_000}}
    weight = intake._weight(json.dumps(body))
    monkeypatch.setattr(intake, "_IN_WORK_MAX", 2.5 * weight)
    for _ in range(5):
        assert site.sender.send(queue, Mutant("large", mutants.fresh(site.said[queue], args=body)))
    refused = "those that came before it are too large to take it too"
    until(lambda: caplog.text.count(refused) == 3)
    for _ in range(2):
        assert begun.acquire(timeout=PATIENCE)
    # Small ones are taken all the time; and when work has ended there is room again.
    site.honest()
    ending.set()
    until(lambda: sum(list(intake._in_work.values())) < weight)
    assert site.sender.send(queue, Mutant("large", mutants.fresh(site.said[queue], args=body)))
    assert begun.acquire(timeout=PATIENCE)


def lost(said: dict[str, Any], **changes: object) -> Mutant:
    """A call from where nobody waits."""
    gone = {"_reply_q": f"reply_{uuid.uuid4().hex}", "_msg_id": uuid.uuid4().hex}
    return Mutant("a call from nowhere", mutants.fresh(said, **gone | changes))


def unsigned(site: Site) -> Callable[[str], Mutant]:
    def make(queue: str) -> Mutant:
        return lost(site.said[queue], _context_signature=None)

    return make


def own_key(site: Site) -> Callable[[str], Mutant]:
    """The hostile host asks for itself, with its key."""
    request = rpc.HeldRequest(host=EVIL).to_wire()
    said = signing.Said(EVIL, "held_handles", {"request": request})

    def make(queue: str) -> Mutant:
        signature = site.keys.forge(said, sender=EVIL)
        changes = {"_context_signature": signature, "args": said.body}
        return lost(site.said[queue], method=said.method, **changes)

    return make


@pytest.mark.parametrize("made", [unsigned, own_key])
def test_calls_whose_caller_is_gone_hold_nothing(
    site: Site, made: Callable[[Site], Callable[[str], Mutant]]
) -> None:
    """More of them than a conductor and an agent have threads; each held one for a minute."""
    usual = statistics.median(site.honest() for _ in range(5))
    make = made(site)
    queues = [queue for queue in site.said if not queue.startswith("reply_")]
    calls = [(queue, make(queue)) for queue in queues for _ in range(CALLS)]
    for queue, call in calls:
        site.sender.send(queue, call)
    beside = [site.honest() for _ in range(10)]
    assert max(beside) < 20 * usual + 5, f"{beside} and not {usual}"


def test_the_log_has_only_so_many_lines(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_said", {})
    queue = client.CONDUCTOR_TOPIC
    for _ in range(60):
        site.sender.send(queue, Mutant("nothing", b"{}"))
    site.honest()
    said = [each for each in caplog.messages if each.startswith("Dropped a message")]
    # The minute may end in between.
    assert len(said) in {20, 40}


def test_true_messages_that_are_packed_are_read_where_that_is_configured(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    queue = client.CONDUCTOR_TOPIC
    bomb = next(mutants.bombs())
    packed = zlib.compress(mutants.fresh(site.said[queue]))
    small = Mutant("packed", packed, bomb.properties)
    group = "oslo_messaging_rabbit"
    cfg.CONF.set_override("kombu_compression", "gzip", group=group)
    try:
        before = memory("VmRSS")
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        for each in (bomb, small, Mutant("half of it", packed[:-9], bomb.properties)):
            site.sender.send(queue, each)
        site.honest()
        assert memory("VmHWM") - before < PEAK
    finally:
        cfg.CONF.clear_override("kombu_compression", group=group)
    assert caplog.text.count("it is too large, unpacked, or has no end") == 2
    # It is read, and known.
    assert "was taken already" in caplog.text


def test_an_exchange_with_an_odd_name(site: Site, log: Log, evil_url: str) -> None:
    """The name of the exchange is in what is delivered, too."""
    connection = mutants.connect(evil_url)
    channel = connection.channel()
    for name in (f"reply_{EVIL}:\x1b[2J", f"reply_{EVIL}:\ud800"):
        channel.exchange_declare(name, "fanout", auto_delete=False)
        channel.exchange_bind(destination="amq.topic", source=name)
        message = amqp.Message(b"{}", **mutants.HEADERS)
        channel.basic_publish(message, name, client.CONDUCTOR_TOPIC)
        channel.queue_declare(f"reply_{EVIL}:1", auto_delete=False)
        site.honest()
        log.check(name)
    connection.close()
