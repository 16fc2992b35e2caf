# SPDX-License-Identifier: Apache-2.0
"""A conductor's consumer as a process, to be killed while it decodes: FILE... [--slow]."""

from __future__ import annotations

import sys
import threading
from typing import Any

import amqp
from oslo_config import cfg

from cyborg import process, rpc
from cyborg.rpc import intake


def say(text: str) -> None:
    """Tell the test."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Kicked:
    """Says that it was kicked."""

    def kick(self, context: dict[str, Any]) -> None:
        """Say it."""
        say("kicked")


def never_done(_message: amqp.Message) -> dict[str, Any]:
    """As if what it decodes had no end."""
    say("decoding")
    threading.Event().wait()
    return {}


def main(slow: str, *arguments: str) -> None:
    """Serve until killed."""
    process.read_options(cfg.CONF, arguments)
    if slow == "slow":
        vars(intake)["read"] = never_done
    rpc.configure(cfg.CONF)
    server = rpc.conductor_server(cfg.CONF, Kicked())  # type: ignore[arg-type]
    server.start()
    server._started.wait(120)
    say("serving")
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
