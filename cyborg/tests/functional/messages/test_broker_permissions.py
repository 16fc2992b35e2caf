# SPDX-License-Identifier: Apache-2.0
"""What the broker user of one host may do, what it may not do to others, and which holes stay.

That an unmodified agent works with it is tested by ``deployment.test_production``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import types
from collections.abc import Callable, Iterator

import amqp
import pytest

from cyborg.common import errors
from cyborg.rpc import client
from cyborg.tests import servers
from cyborg.tests.mutants import connect
from cyborg.tests.service import until

pytestmark = pytest.mark.services

HOST, OLD = f"one-{servers.MINE}.example", f"old-{servers.MINE}.example"
OTHER = "compute-1"
EXCHANGE = "amq.topic"
#: Where conductors and another host get replies, as oslo.messaging and Cyborg name them.
REPLIES = {"a conductor": f"reply_{'0' * 32}", "another host": f"reply_{OTHER}:{'0' * 32}"}
Act = Callable[[amqp.Channel], object]


@pytest.fixture(scope="module")
def vhost() -> Iterator[str]:
    """The URL for conductors; what they and other hosts have is there."""
    with servers.new_vhost() as url:
        with connect(url) as connection:
            channel = connection.channel()
            for name in ("cyborg", "nova"):
                channel.exchange_declare(name, "topic", auto_delete=False)
            for exchange, queue in QUEUES:
                channel.queue_declare(queue, auto_delete=False)
                channel.queue_bind(queue, exchange, queue)
            for queue in REPLIES.values():
                channel.queue_declare(queue, auto_delete=False)
        yield url


#: With the exchange through which each gets what is sent to it.
QUEUES = [
    (EXCHANGE, "cyborg-conductor"),
    (EXCHANGE, f"cyborg-agent.{OTHER}"),
    (EXCHANGE, f"cyborg-agent.{OTHER}._"),
    ("cyborg", "notifications.info"),
    ("nova", "compute"),
]


@pytest.fixture(scope="module")
def evil(vhost: str) -> Iterator[str]:
    """The URL for the agent of one host."""
    with servers.user_of_agent(vhost, HOST) as own:
        yield own


def send(key: str, exchange: str = EXCHANGE) -> Act:
    # A refusal of a message comes later, so the channel is asked something after it.
    def act(channel: amqp.Channel) -> None:
        channel.basic_publish(amqp.Message("{}"), exchange, key)
        channel.queue_declare(f"cyborg-agent.{HOST}", auto_delete=False)

    return act


def declare(name: str) -> Act:
    return lambda channel: channel.queue_declare(name, auto_delete=False)


def bind(name: str, key: str) -> Act:
    def act(channel: amqp.Channel) -> None:
        channel.queue_declare(f"cyborg-agent.{HOST}", auto_delete=False)
        channel.queue_bind(name, EXCHANGE, key)

    return act


def on(name: str, act: str) -> Act:
    return lambda channel: getattr(channel, act)(name)


OWN = f"cyborg-agent.{HOST}"
PERMITTED: dict[str, Act] = {
    "its own queue": declare(OWN),
    "the queue beside it": declare(f"{OWN}._"),
    "its own fanout": lambda c: c.exchange_declare(f"{OWN}_fanout", "fanout"),
    "a queue of replies": declare(f"reply_{HOST}:1"),
    "to bind its own": bind(OWN, OWN),
    "to report": send("cyborg-conductor"),
    "to see whether the broker answers": send("cyborg-nobody"),
    "to reply": send(REPLIES["a conductor"], exchange=""),
}
REFUSED: dict[str, Act] = {
    "make the queue of another host": declare("cyborg-agent.compute-2"),
    "make one whose name only looks like its own": declare("cyborg-agent.evilXexample"),
    "make one whose name goes on": declare(f"cyborg-agent.{HOST}.x"),
    "make a queue of its choice": declare("mine"),
    "make a queue that others might share": declare("cyborg-agent"),
    "make a queue of replies that is not its own": declare("reply_1"),
    "read the steps of another host": lambda c: c.basic_get(f"cyborg-agent.{OTHER}"),
    "consume the steps of another host": lambda c: c.basic_consume(f"cyborg-agent.{OTHER}"),
    "read what hosts report": lambda c: c.basic_get("cyborg-conductor"),
    "consume what hosts report": lambda c: c.basic_consume("cyborg-conductor"),
    "read notifications": lambda c: c.basic_get("notifications.info"),
    "empty the queue of another host": lambda c: c.queue_purge(f"cyborg-agent.{OTHER}"),
    "empty the queue of conductors": lambda c: c.queue_purge("cyborg-conductor"),
    "delete the queue of another host": lambda c: c.queue_delete(f"cyborg-agent.{OTHER}"),
    "delete the queue of conductors": lambda c: c.queue_delete("cyborg-conductor"),
    "order a step of another host": send(f"cyborg-agent.{OTHER}"),
    "order a step of itself": send(OWN),
    "order a step of any host": send("cyborg-agent"),
    "notify": send("notifications.info"),
    "notify as the services do": send("notifications.info", exchange="cyborg"),
    "delete the exchange": lambda c: c.exchange_delete(EXCHANGE),
    "delete the exchange of notifications": lambda c: c.exchange_delete("cyborg"),
    "make another one in its place": lambda c: c.exchange_declare("cyborg", "fanout"),
    "delete the second queue of another host": lambda c: c.queue_delete(f"cyborg-agent.{OTHER}._"),
    "make an exchange": lambda c: c.exchange_declare("mine", "fanout"),
    "make a fanout of conductors": lambda c: c.exchange_declare(
        "cyborg-conductor_fanout", "fanout"
    ),
    "hear what conductors get": bind(OWN, "cyborg-conductor"),
    "hear the steps of another host": bind(OWN, f"cyborg-agent.{OTHER}"),
    "hear everything": bind(OWN, "#"),
    "lead the steps of another host away": lambda c: c.queue_unbind(
        f"cyborg-agent.{OTHER}", EXCHANGE, f"cyborg-agent.{OTHER}"
    ),
    "send to another service": send("q", exchange="nova"),
}
for whose, replies in REPLIES.items():
    REFUSED |= {
        f"read the replies to {whose}": on(replies, "basic_get"),
        f"consume the replies to {whose}": on(replies, "basic_consume"),
        f"empty the replies to {whose}": on(replies, "queue_purge"),
        f"delete the replies to {whose}": on(replies, "queue_delete"),
        f"hear the replies to {whose}": bind(replies, OWN),
    }


def straight(key: str) -> Act:
    """Send past the exchange of all."""
    return send(key, exchange="")


def dead_letter(key: str) -> Act:
    """Send with the rights of the broker: a queue of its own passes on what it drops."""

    def act(channel: amqp.Channel) -> None:
        arguments = {
            "x-dead-letter-exchange": EXCHANGE,
            "x-dead-letter-routing-key": key,
            "x-message-ttl": 0,
        }
        queue = f"reply_{HOST}:{key}"
        channel.queue_declare(queue, auto_delete=True, arguments=arguments)
        channel.basic_publish(amqp.Message("{}"), "", queue)
        channel.queue_declare(queue, passive=True)

    return act


def pass_on(key: str) -> Act:
    """The same with an exchange of its own, bound to that of all."""

    def act(channel: amqp.Channel) -> None:
        own = f"cyborg-agent.{HOST}_fanout"
        channel.exchange_declare(own, "fanout")
        channel.exchange_bind(destination=EXCHANGE, source=own)
        channel.basic_publish(amqp.Message("{}"), own, key)
        channel.queue_declare(OWN, auto_delete=False)

    return act


#: What RabbitMQ cannot refuse, with the queue that it reaches; messages are refused by their
#: receivers, see test_hostile_host.
HOLES: dict[str, tuple[Callable[[str], Act], str]] = {
    "order a step of another host": (straight, f"cyborg-agent.{OTHER}"),
    "answer a conductor": (straight, REPLIES["a conductor"]),
    "answer another host": (straight, REPLIES["another host"]),
    "send to conductors what no host sends": (straight, "cyborg-conductor"),
    "send notifications": (straight, "notifications.info"),
    "send to another service": (straight, "compute"),
    "order a step of another host by a dead letter": (dead_letter, f"cyborg-agent.{OTHER}"),
    "order one by an exchange of its own": (pass_on, f"cyborg-agent.{OTHER}"),
    "send to conductors by a dead letter": (dead_letter, "cyborg-conductor"),
    "send to conductors by an exchange of its own": (pass_on, "cyborg-conductor"),
}


@pytest.mark.parametrize("what", PERMITTED)
def test_what_an_agent_needs_is_permitted(evil: str, what: str) -> None:
    with connect(evil) as connection:
        PERMITTED[what](connection.channel())


@pytest.mark.parametrize("what", REFUSED)
def test_what_reaches_others_is_refused(evil: str, what: str) -> None:
    refused = pytest.raises(amqp.exceptions.AMQPError)
    with contextlib.closing(connect(evil)) as connection, refused as caught:
        REFUSED[what](connection.channel())
    assert caught.value.code == 403, caught.value


@pytest.mark.parametrize("what", HOLES)
def test_a_known_hole(vhost: str, evil: str, what: str) -> None:
    """The pages and the script say so: if this is refused one day, they have to say that."""
    act, queue = HOLES[what]
    with connect(vhost) as receiver:
        channel = receiver.channel()
        channel.queue_purge(queue)
        with connect(evil) as connection:
            act(queue)(connection.channel())
            # The broker passes on by itself, some time later.
            found = until(lambda: channel.basic_get(queue, no_ack=True))
    assert found.body == "{}"


def test_how_many_messages_another_host_waits_for_is_a_known_hole(vhost: str, evil: str) -> None:
    queue = f"cyborg-agent.{OTHER}"
    with connect(vhost) as sender, connect(evil) as connection:
        channel = sender.channel()
        channel.queue_purge(queue)
        for _ in range(3):
            channel.basic_publish(amqp.Message("{}"), EXCHANGE, queue)
        channel.queue_declare(queue, passive=True)
        seen = connection.channel().queue_declare(queue, passive=True)
        assert seen.message_count == 3


def test_a_library_whose_queue_of_replies_cannot_be_named_is_refused() -> None:
    transport = types.SimpleNamespace(_driver=object())
    with pytest.raises(errors.Misconfigured, match="names the queue of replies in a way"):
        client._name_replies(transport, HOST)


def test_the_exchange_of_the_release_before_is_a_known_hole(vhost: str) -> None:
    """Who must be permitted to declare it may delete it."""
    with servers.user_of_agent(vhost, OLD, "cyborg") as old:
        with connect(old) as connection:
            channel = connection.channel()
            channel.queue_declare(f"cyborg-agent.{OLD}", auto_delete=False)
            channel.exchange_declare("cyborg", "topic", auto_delete=False)
            channel.queue_bind(f"cyborg-agent.{OLD}", "cyborg", f"cyborg-agent.{OLD}")
            channel.exchange_delete("cyborg")
        with contextlib.closing(connect(vhost)) as connection:
            channel = connection.channel()
            with pytest.raises(amqp.exceptions.NotFound):
                channel.exchange_declare("cyborg", "topic", passive=True)
            connection.channel().exchange_declare("cyborg", "topic", auto_delete=False)
        # Replies and the queues of others are kept from it all the same.
        for what in ("delete the replies to a conductor", "delete the queue of another host"):
            refused = pytest.raises(amqp.exceptions.AccessRefused)
            with contextlib.closing(connect(old)) as connection, refused:
                REFUSED[what](connection.channel())


@pytest.mark.parametrize(
    "arguments",
    [
        ("x|.*", "d"),
        ("a_", "d"),
        ("a_fanout", "d"),
        ("a", "d", "nova"),
        ("a",),
        ("a", "/"),
        ("a", ""),
    ],
    ids=str,
)
def test_what_the_script_does_not_take_is_refused(arguments: tuple[str, ...]) -> None:
    # The queue of host a_fanout would be the fanout of host a; others use the virtual host /.
    script = servers.REPOSITORY / "etc" / "rabbitmq" / "permit-agent.sh"
    environment = os.environ | {"RABBITMQCTL": "false"}
    done = subprocess.run(
        [script, *arguments],
        input="secret",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.partition(":")[0]) == (2, "usage")
