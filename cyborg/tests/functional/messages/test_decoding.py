# SPDX-License-Identifier: Apache-2.0
"""A conductor that dies while it decodes a message does not meet it for ever.

The queues are those of the installation guide's cyborg.conf, on a real RabbitMQ.
"""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import rpc
from cyborg.rpc import client
from cyborg.tests import deployment, mutants, servers, slow_reader
from cyborg.tests.service import until

pytestmark = pytest.mark.services


@contextlib.contextmanager
def conductor(kind: str, files: list[str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(slow_reader.__file__), kind, *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as one:
        try:
            yield one
        finally:
            one.kill()


def said(one: subprocess.Popen[str]) -> str:
    assert one.stdout is not None
    return one.stdout.readline().strip()


def left(url: str) -> str:
    """How many messages wait for conductors, or are with one."""
    vhost = str(sa.make_url(url).database)
    queues = servers.rabbitmqctl("list_queues", "-p", vhost, "name", "messages")
    found = dict(line.split("\t") for line in queues.splitlines())
    return found[client.CONDUCTOR_TOPIC]


def test_a_message_that_kills_is_dropped(conf: cfg.ConfigOpts, tmp_path: pathlib.Path) -> None:
    with servers.new_vhost() as url:
        own = tmp_path / "own.conf"
        own.write_text(f"[DEFAULT]\ntransport_url = {url}\n[oslo_messaging_rabbit]\nssl = false\n")
        production = str(deployment.PRODUCTION)
        files = ["--config-file", production, "--config-file", str(own)]
        with conductor("fast", files) as one:
            assert said(one) == "serving"
        sender = mutants.Sender(url)
        sender.send(client.CONDUCTOR_TOPIC, mutants.Mutant("deadly", mutants.sealed({"a": 1})))
        for _ in range(3):
            with conductor("slow", files) as one:
                # It may be serving before it gets the message.
                assert "decoding" in {said(one), said(one)}
        with conductor("slow", files) as one:
            assert said(one) == "serving"
            until(lambda: left(url) == "0")
        with conductor("fast", files) as one:
            assert said(one) == "serving"
            kick = mutants.sealed({"method": "kick", "args": {}, "version": "2.0"})
            sender.send(client.CONDUCTOR_TOPIC, mutants.Mutant("a kick", kick))
            assert said(one) == "kicked"
        sender.close()
    rpc.close()
