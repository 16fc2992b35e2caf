# SPDX-License-Identifier: Apache-2.0
"""What the broker user of one host may do, and what it may not do to others.

That an unmodified agent works with it is tested by ``test_deployment``.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator

import amqp
import pytest
import sqlalchemy as sa

from cyborg.tests import servers

pytestmark = pytest.mark.services

HOST = "evil.example"
OTHER = "compute-1"
Act = Callable[[amqp.Channel], object]


def connect(url: str) -> amqp.Connection:
    where = sa.make_url(url)
    return amqp.Connection(
        host=f"{where.host}:{where.port}",
        userid=where.username,
        password=where.password,
        virtual_host=where.database,
    )


@pytest.fixture(scope="module")
def evil() -> Iterator[str]:
    """The URL for the agent of one host; the queues of others are there."""
    with servers.new_vhost() as url, servers.user_of_agent(url, HOST) as own:
        with connect(url) as connection:
            channel = connection.channel()
            channel.exchange_declare("cyborg", "topic", auto_delete=False)
            for name in ("cyborg-conductor", f"cyborg-agent.{OTHER}", "notifications.info"):
                channel.queue_declare(name, auto_delete=False)
                channel.queue_bind(name, "cyborg", name)
        yield own


def send(key: str, exchange: str = "cyborg") -> Act:
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
        channel.queue_bind(name, "cyborg", key)

    return act


OWN = f"cyborg-agent.{HOST}"
PERMITTED: dict[str, Act] = {
    "its own queue": declare(OWN),
    "the shared queue of agents": declare("cyborg-agent"),
    "a queue of replies": declare("reply_1"),
    "to bind its own": bind(OWN, OWN),
    "to report": send("cyborg-conductor"),
    "to see whether the broker answers": send("cyborg-nobody"),
    "to reply": send("reply_1", exchange=""),
}
REFUSED: dict[str, Act] = {
    "make the queue of another host": declare("cyborg-agent.compute-2"),
    "make one whose name only looks like its own": declare("cyborg-agent.evilXexample"),
    "make one whose name goes on": declare(f"cyborg-agent.{HOST}.x"),
    "make a queue of its choice": declare("mine"),
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
    "make an exchange": lambda c: c.exchange_declare("mine", "fanout"),
    "make a fanout of conductors": lambda c: c.exchange_declare(
        "cyborg-conductor_fanout", "fanout"
    ),
    "hear what conductors get": bind(OWN, "cyborg-conductor"),
    "hear the steps of another host": bind(OWN, f"cyborg-agent.{OTHER}"),
    "hear everything": bind(OWN, "#"),
    "lead the steps of another host away": lambda c: c.queue_unbind(
        f"cyborg-agent.{OTHER}", "cyborg", f"cyborg-agent.{OTHER}"
    ),
    "send to another service": send("q", exchange="nova"),
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
    assert caught.value.code in {403, 404}, caught.value


def test_a_name_that_is_no_host_is_refused() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        servers.user_of_agent("rabbit://a:b@c/d", "x|.*").__enter__()
