# SPDX-License-Identifier: Apache-2.0
"""Conductors and agents as processes that can be stopped, killed and started again."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess

from cyborg.agent import bitstream_cache
from cyborg.cmd import agent, conductor
from cyborg.drivers import fake
from cyborg.programming import write_permits
from cyborg.rpc import client
from cyborg.tests.partitions import cards

CONDUCTOR, AGENT = "conductor", "agent"

#: Seconds, so short that what takes long in a cloud happens often here.
_SILENCE = 2
_PERMIT_TIMEOUT = 3
_TERM = 2.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a process needs to know."""

    kind: str
    name: str
    folder: pathlib.Path
    #: The topics of this test's conductors and agents.
    topics: tuple[str, str]
    books: cards.Books
    #: How an agent's cards are programmed.
    mode: str = ""

    @property
    def options(self) -> pathlib.Path:
        """The configuration file."""
        return self.folder / f"{self.name}.conf"

    @property
    def log(self) -> pathlib.Path:
        """What the process says."""
        return self.folder / f"{self.name}.log"


def main(settings: Settings) -> None:
    """Be that service; what it says goes to a file."""
    with settings.log.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    client.CONDUCTOR_TOPIC, client.AGENT_TOPIC = settings.topics
    client.SILENCE, client._PERMIT_TIMEOUT = _SILENCE, _PERMIT_TIMEOUT
    write_permits.TERM = _TERM
    if settings.kind == AGENT:
        cards.Driver.judge, cards.Driver.mode = cards.Judge(settings.books), settings.mode
        setattr(fake, fake.FakeDriver.__name__, cards.Driver)
        setattr(bitstream_cache, bitstream_cache.Cache.__name__, cards.Cache)
    service = agent.main if settings.kind == AGENT else conductor.main
    sys.exit(service(["--config-file", str(settings.options)]))


def _end_with(parent: int) -> None:
    """Run no longer than the test, which may be killed."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _forks() -> ForkServerContext:
    """Starts processes as forks of one that has imported everything already."""
    context = multiprocessing.get_context("forkserver")
    drivers = ["oslo_messaging._drivers.impl_rabbit", "pymysql", "psycopg2"]
    plugins = ["admin_token", "noauth"]
    loaded = [f"keystoneauth1.loading._plugins.{each}" for each in plugins]
    context.set_forkserver_preload([__name__, *drivers, *loaded, "pytest"])
    return context


class Process:
    """A service."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        """Start it."""
        self._process = _forks().Process(target=main, args=(self.settings,), daemon=True)
        self._process.start()

    def kill(self) -> None:
        """End it as a power failure does."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def stop(self) -> None:
        """Suspend it."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume it."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        assert self._process.pid is not None
        os.kill(self._process.pid, number)
