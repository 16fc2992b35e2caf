# SPDX-License-Identifier: Apache-2.0
"""A cloud: its processes, the connections between them, and what befalls both."""

from __future__ import annotations

import configparser
import contextlib
import pathlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db
from cyborg.common import errors
from cyborg.db import models
from cyborg.drivers import base
from cyborg.hosts import removal
from cyborg.programming import program
from cyborg.rpc import client
from cyborg.tests import messages, servers
from cyborg.tests.partitions.cards import Books, Card
from cyborg.tests.partitions.processes import AGENT, CONDUCTOR, Process, Settings
from cyborg.tests.placement_server import PlacementServer

CONDUCTORS = ("conductor-1", "conductor-2")
#: How the cards of each host are programmed, and whether their handles are prepared and cleaned.
HOSTS = {
    "host-1": (base.DYNAMIC, False),
    "host-2": (base.SINGLE_PROGRAM, False),
    "host-3": (base.DYNAMIC, True),
}
CARDS = 10
HANDLES = 2

_FAULTS_AT_ONCE = 2

#: Which way of a wire is held.
_ASKS, _ANSWERS = "asks", "answers"


class Wire(messages.Wire):
    """A way on which what is asked, or what is answered, can be held without anybody's notice."""

    def __init__(self, server_url: str) -> None:
        self._open = {_ASKS: threading.Event(), _ANSWERS: threading.Event()}
        super().__init__(server_url)
        self.join()
        self.release()

    def hold(self, *ways: str) -> None:
        """Hold what goes through from now on."""
        for way in ways or self._open:
            self._open[way].clear()

    def release(self) -> None:
        """Let everything through, late."""
        for gate in self._open.values():
            gate.set()

    def break_off(self) -> None:
        """Lose what is held, and break every connection; new ones are possible."""
        self.cut()
        self.release()
        self.join()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            way = _ASKS if source.getsockname()[1] == self._port else _ANSWERS
            while data := source.recv(65536):
                self._open[way].wait()
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


class Host:
    """A host with cards."""

    def __init__(self, name: str, folder: pathlib.Path) -> None:
        self.name = name
        mode, self.is_stepped = HOSTS[name]
        numbers = [f"_{number}" if number else "" for number in range(CARDS)]
        self.cards = [
            Card(folder=folder, name=f"{name}_FakeDevice{number}", mode=mode, handles=HANDLES)
            for number in numbers
        ]
        #: Whoever holds it has the only say about what its guests do.
        self.locks = {card.name: threading.RLock() for card in self.cards}
        #: Called with all locks held when its record is to be removed.
        self.leave: list[Callable[[], None]] = []


class Cloud:
    """Everything, as it is configured and started."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        folder: pathlib.Path,
        database: str,
        placement: PlacementServer,
    ) -> None:
        self._conf = conf
        self._folder = folder
        self.placement = placement
        self.books = Books(
            database=database,
            placement=placement.database,
            faults=folder / "faults",
        )
        self.books.faults.touch()
        self._hardware = folder / "hardware"
        self.hosts = {name: Host(name, self._hardware) for name in HOSTS}
        #: The names of cards that have waited long to come to rest.
        self.waiting: set[str] = set()
        self.wires: dict[str, dict[str, Wire]] = {}
        self.parts: dict[str, Process] = {}
        self._cards = {card.provider: card for each in self.hosts.values() for card in each.cards}

    def start(self) -> None:
        """Start every process, and look at Placement whenever it changes."""
        for host in self.hosts.values():
            self.placement.make_provider(host.name)
            for card in host.cards:
                card.make()
        self.placement.after = self.sample
        for name in CONDUCTORS:
            self._add(CONDUCTOR, name, self._of_conductor(name))
        for name in HOSTS:
            self._add(AGENT, name, self._of_agent(name))
        for part in self.parts.values():
            part.start()

    def stop(self) -> None:
        """End them."""
        self.placement.after = None
        for part in self.parts.values():
            part.kill()
        for wires in self.wires.values():
            for wire in wires.values():
                wire.cut()
                wire.release()

    def sample(self) -> None:
        """What Placement offers of each card is what the card runs."""
        before = {name: card.function() for name, card in self._cards.items()}
        shown = self.placement.shows("FPGA")
        for provider, (free, traits) in shown.items():
            card = self._cards[provider]
            runs = card.function()
            if not free or runs != before[provider] or card.is_lost():
                continue
            expected = {program.function_trait("FAKE", runs)} if runs else set()
            functions = {trait for trait in traits if "FUNCTION_ID" in trait}
            if not functions <= expected:
                self.books.blame(f"{card.name} is on offer with {functions}, and runs {runs!r}")
            if not runs and card.mode == base.SINGLE_PROGRAM:
                self.books.blame(f"{card.name} is on offer, and runs nothing")

    def remove(self, host: Host) -> None:
        """The host is silent; its record is removed by force, and its guests are no more."""
        with contextlib.ExitStack() as stack:
            for lock in host.locks.values():
                stack.enter_context(lock)
            uuid = _stand_down(host.name)
            for leave in host.leave:
                leave()
            if uuid is not None:
                # It has reported meanwhile, or was removed before.
                with contextlib.suppress(errors.Conflict, errors.NotFound):
                    removal.remove_host(uuid, force=True)

    def _add(self, kind: str, name: str, options: dict[str, dict[str, object]]) -> None:
        settings = Settings(
            kind=kind,
            name=name,
            folder=self._folder,
            topics=(client.CONDUCTOR_TOPIC, client.AGENT_TOPIC),
            books=self.books,
            mode=HOSTS[name][0] if kind == AGENT else "",
        )
        parser = configparser.RawConfigParser(default_section="")
        parser.read_dict(options)
        with settings.options.open("w") as file:
            parser.write(file)
        self.parts[name] = Process(settings)

    def _way(self, name: str, what: str, url: str) -> str:
        wire = self.wires.setdefault(name, {})[what] = Wire(url)
        return wire.url

    def _of_conductor(self, name: str) -> dict[str, dict[str, object]]:
        broker = self._way(name, "the broker", servers.url_of("rabbitmq"))
        return {
            "DEFAULT": {
                "host": name,
                "transport_url": broker,
                "state_path": self._folder / name,
                "thread_pool_size": 8,
            },
            "database": {"connection": self._way(name, "the database", self.books.database)},
            "conductor": {
                "poll_interval": 2,
                "work_lease": 6,
                "host_step_timeout": 2,
                "host_down_time": 8,
                "bind_deadline": 60,
                # So long that it mends nothing that was forgotten.
                "placement_audit_interval": 3600,
                "allocation_audit_interval": 0,
                "instance_audit_interval": 0,
            },
            "programming": {"step_timeout": 1, "pool_interval": 60},
            "placement": {
                "auth_type": "admin_token",
                "endpoint": self.placement.url,
                "token": "admin",
            },
            "glance": self._of_glance(),
        }

    def _of_agent(self, name: str) -> dict[str, dict[str, object]]:
        mode, is_stepped = HOSTS[name]
        broker = self._way(name, "the broker", servers.url_of("rabbitmq"))
        state = self._folder / name
        return {
            "DEFAULT": {"host": name, "transport_url": broker, "state_path": state},
            "agent": {
                "enabled_drivers": "fake_driver",
                "report_interval": 4,
                "discovery_interval": 2,
                "hotplug": False,
            },
            "fake_driver": {
                "devices": CARDS,
                "handles_per_device": HANDLES,
                "program_mode": mode,
                "state_dir": self._hardware,
                "host_step": is_stepped,
            },
            "glance": self._of_glance(),
        }

    def _of_glance(self) -> dict[str, object]:
        return {"auth_type": "none", "endpoint_override": self._conf.glance.endpoint_override}


# A conductor that was cut off from the database meanwhile may still hold the row.
@db.retry
def _stand_down(name: str) -> str | None:
    """Have a host be down; the UUID of its record, if it has one."""
    row = models.Host
    with db.writer() as session:
        db.update(session, row, row.name == name, down=True)
        return session.scalar(sa.select(row.uuid).where(row.name == name))


class Storm:
    """Faults, one after the other, as chance will have it."""

    def __init__(self, cloud: Cloud, chance: random.Random) -> None:
        self._cloud = cloud
        self._chance = chance
        self._over = threading.Event()
        self.counts: Counter[str] = Counter()
        #: What a fault may hit; each is hit by one at a time.
        self._free = [*CONDUCTORS, *HOSTS]
        self._lock = threading.Lock()
        self._pool = futures.ThreadPoolExecutor(_FAULTS_AT_ONCE)
        self._rages: list[futures.Future[None]] = []

    def begin(self) -> None:
        """Let it rage until :meth:`end`."""
        for _ in range(_FAULTS_AT_ONCE):
            chance = random.Random(self._chance.random())
            self._rages.append(self._pool.submit(self._rage, chance))

    def end(self) -> None:
        """Return when all works again; what a fault itself failed of is raised."""
        self._over.set()
        self._pool.shutdown()
        for rage in self._rages:
            rage.result()

    def _rage(self, chance: random.Random) -> None:
        faults: list[tuple[int, Callable[[str, random.Random], None]]] = [
            (6, self._suspend),
            (1, self._kill),
            (6, self._cut_off),
            (2, self._break_off),
            (3, self._remove),
        ]
        while not self._over.wait(chance.uniform(0.5, 4.0)):
            if self._cloud.waiting:
                continue
            (fault,) = chance.choices(
                [each for _, each in faults], [weight for weight, _ in faults]
            )
            with self._victim(chance) as name:
                fault(name, chance)

    @contextlib.contextmanager
    def _victim(self, chance: random.Random) -> Iterator[str]:
        with self._lock:
            name = chance.choice(self._free)
            self._free.remove(name)
        try:
            yield name
        finally:
            with self._lock:
                self._free.append(name)

    def _count(self, what: str, name: str) -> None:
        with self._lock:
            self.counts[f"{what} {name.partition('-')[0]}"] += 1

    def _wait(self, chance: random.Random, most: float) -> None:
        self._over.wait(chance.uniform(0.1, most))

    def _suspend(self, name: str, chance: random.Random) -> None:
        self._count("suspend", name)
        part = self._cloud.parts[name]
        part.stop()
        self._wait(chance, chance.choice([1.0, 3.0, 9.0]))
        part.go_on()

    def _kill(self, name: str, chance: random.Random) -> None:
        self._count("kill", name)
        part = self._cloud.parts[name]
        part.kill()
        self._wait(chance, 1.0)
        part.start()

    def _wire(self, name: str, chance: random.Random) -> tuple[str, Wire]:
        what = chance.choice(sorted(self._cloud.wires[name]))
        return what, self._cloud.wires[name][what]

    def _cut_off(self, name: str, chance: random.Random) -> None:
        """Nothing gets through, or no answers; then all of it, late, or none."""
        what, wire = self._wire(name, chance)
        self._count(f"cut off from {what}:", name)
        ways = chance.choice([(), (_ASKS,), (_ANSWERS,)])
        wire.hold(*ways)
        self._wait(chance, chance.choice([0.5, 2.0, 8.0]))
        if chance.random() < 0.5:
            wire.release()
        else:
            wire.break_off()

    def _break_off(self, name: str, chance: random.Random) -> None:
        what, wire = self._wire(name, chance)
        self._count(f"break connections to {what}:", name)
        wire.break_off()

    def _remove(self, name: str, chance: random.Random) -> None:
        """A host cannot be reached, or is suspended, and its record is removed by force."""
        if name not in self._cloud.hosts:
            return
        self._count("remove", name)
        part, wire = self._cloud.parts[name], self._cloud.wires[name]["the broker"]
        is_suspended = chance.random() < 0.5
        part.stop() if is_suspended else wire.hold()
        try:
            self._wait(chance, 2.0)
            self._cloud.remove(self._cloud.hosts[name])
            self._wait(chance, 1.0)
        finally:
            part.go_on() if is_suspended else wire.release()
