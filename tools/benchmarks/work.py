# SPDX-License-Identifier: Apache-2.0
"""The work that compare.py lets both sides do, and what each unit of it costs."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import client
import readings
import requests
import sqlalchemy as sa
from client import Client, Failed, Target, until
from sides import Side

from cyborg.inventory.apply import provider_uuid
from cyborg.tests import servers

#: The host that accelerators are taken from: enough handles for 32 boots of 4 at once.
HOST, DEVICES, HANDLES = "benchmark-0", 32, 16
GROUP = {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}
#: Nova's identity, for upstream's API without Keystone.
IDENTITY = {
    "X-User-Id": "nova",
    "X-Project-Id": "1" * 32,
    "X-Roles": "admin,member,reader,service",
    "X-Service-Roles": "service",
    "X-Service-Identity-Status": "Confirmed",
}
_PLACEMENT = {
    "X-Auth-Token": "admin",
    "OpenStack-API-Version": "placement 1.37",
    "X-Benchmark": "1",
}
_READY = """
    SELECT COUNT(*) FROM resource_providers rp WHERE rp.name GLOB ?
    AND EXISTS (SELECT 1 FROM inventories i WHERE i.resource_provider_id = rp.id)
    AND EXISTS (SELECT 1 FROM resource_provider_traits t WHERE t.resource_provider_id = rp.id)
"""
#: A statement that clones a row many times; MariaDB makes the numbers.
_CLONE = "INSERT INTO {table} ({names}) SELECT {values} FROM (SELECT * FROM {table} ORDER BY id"
_CLONE += " LIMIT 1) one, seq_1_to_{count} seq"
#: Whose CPU a boot's is, and of what it uses of the servers' (of all who use them meanwhile).
SERVICES = ("api", "conductor")
SERVERS = {"mariadb": "mariadbd", "rabbitmq": "beam.smp"}
#: What the server counts: everything asked of it but pings, and kinds of it.
_COUNTERS = {
    "Questions": "questions",
    "Com_select": "SELECTs",
    "Com_commit": "COMMITs",
    "Com_rollback": "ROLLBACKs",
    "Com_admin_commands": "pings",
}
#: Devices of the host whose unchanged report is counted: upstream asks more and more for more.
_COUNTED = 8
#: Messages that were published on RabbitMQ since its start.
_MESSAGES = (
    "maps:get(messages_received_total,"
    " maps:get([{protocol,amqp091}], rabbit_global_counters:overview()))."
)


@dataclass(frozen=True)
class Added:
    """Hosts that were added, and the seconds that it took."""

    names: list[str]
    seconds: float


class Bench:
    """Does units of work on a side, and measures them."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._engine = sa.create_engine(side.database, isolation_level="AUTOCOMMIT")
        # What is measured must not count what is asked to measure it.
        self._engine.dialect.skip_autocommit_rollback = True
        self._looks = 0
        self._placement = sqlite3.connect(
            f"file:{side.neighbours.state}/placement.sqlite?mode=ro", uri=True
        )
        self._hosts = itertools.count(1)
        url = f"http://127.0.0.1:{side.port}/v2"
        self._client = Client(side.kind.name, url, IDENTITY)

    def prepare(self) -> None:
        """Report the host of the boots; make the profiles."""
        self._roots([HOST])
        self.side.report([HOST], DEVICES, HANDLES)
        self._await_providers(HOST, DEVICES)
        for count in (1, 4):
            body = [{"name": f"take-{count}", "groups": [GROUP] * count}]
            self.ask("POST", "/device_profiles", body)
        # Until then threads and connections are missing, and nothing is compiled.
        self.boots(1, 16, 64)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the API; its answer, or None while it says 423."""
        return self._client.ask(method, path, body)

    def boot(self, count: int, slot: int) -> None:
        """What Nova asks for a server with ``count`` accelerators, from its making to its end."""
        targets = [self._target(4 * slot + each) for each in range(count)]
        client.boot(self.ask, f"take-{count}", targets, self._expect)

    def _expect(self, arqs: Sequence[str]) -> Callable[[], None]:
        """What waits for the events of these ARQs, which have not been sent yet."""
        arrived = [self.side.neighbours.expect(arq) for arq in arqs]

        def wait() -> None:
            for event in arrived:
                if not event.wait(120):
                    raise Failed(f"{self.side.kind.name}: no event within 120 seconds")

        return wait

    def _target(self, number: int) -> Target:
        node = f"{HOST}.example" if self.side.kind.name == "ours" else HOST
        return Target(node, provider_uuid(f"{HOST}_{number % DEVICES:04d}"))

    def boots(self, count: int, at_once: int, total: int) -> dict[str, float]:
        """``total`` boots, ``at_once`` at a time: boots a second, and the CPU of each in ms."""
        with self._cpu() as used:
            begin = time.perf_counter()
            taken = client.at_once(lambda slot: self.boot(count, slot), at_once, total)
            took = time.perf_counter() - begin
            # What is done after the last answer is part of it.
            time.sleep(0.5)
        name = f"boots {count}x{at_once}"
        costs = {part: 1000 * seconds / total for part, seconds in used.items()}
        ours = sum(costs[part] for part in SERVICES)
        each = {f"{name} cpu {part}": cost for part, cost in costs.items()}
        middle = 1000 * statistics.median(taken)
        return {name: total / took, f"time of {name}": middle, f"{name} cpu": ours, **each}

    @contextlib.contextmanager
    def _cpu(self) -> Iterator[dict[str, float]]:
        """Seconds of CPU while the block runs: of the services, and of the servers they use."""
        parts = {name: self.side.pids(name) for name in SERVICES}
        parts |= {name: readings.named(command) for name, command in SERVERS.items()}
        before = {name: readings.cpu(pids) for name, pids in parts.items()}
        used: dict[str, float] = {}
        yield used
        used |= {name: readings.cpu(pids) - before[name] for name, pids in parts.items()}

    def counts(self, total: int) -> dict[str, float]:
        """What a boot asks of the servers."""
        with self._asked("a boot", total) as found:
            for _ in range(total):
                self.boot(1, 0)
        return found

    @contextlib.contextmanager
    def _asked(self, unit: str, total: int = 1) -> Iterator[dict[str, float]]:
        """What each of ``total`` units of work asks of the servers; nobody else may use them."""
        found: dict[str, float] = {}
        before = self._counters()
        yield found
        # What is done after the last answer is part of it.
        time.sleep(1)
        after = self._counters()
        found |= {f"{unit}: {name}": (after[name] - before[name]) / total for name in before}

    def _counters(self) -> dict[str, int]:
        with self._engine.connect() as connection:
            rows = connection.execute(sa.text("SHOW GLOBAL STATUS")).all()
        self._looks += 1
        found = {_COUNTERS[name]: int(value) for name, value in rows if name in _COUNTERS}
        questions = found.pop("questions") - self._looks
        calls = self.side.neighbours.calls
        return found | {
            "SQL round trips": questions + found["pings"],
            "SQL statements": questions - found["COMMITs"] - found["ROLLBACKs"],
            "Placement calls": calls["placement"],
            "Nova calls": calls["nova"],
            "RPC messages": int(servers.rabbitmqctl("eval", _MESSAGES)),
        }

    def first_report(self, devices: int) -> dict[str, float]:
        """A new host with many devices, until Placement holds them all."""
        host = self._new_hosts(1)
        with self._asked("a device's first report", devices) as asked:
            took = self._timed(lambda: self._report(host, devices))
        return {f"first report {devices}": took, **asked}

    def unchanged_report(self, devices: int) -> dict[str, float]:
        """Seconds that the same report takes once more."""
        host = self._new_hosts(1)
        self._report(host, devices)
        time.sleep(1)
        # After a pause everybody has to wake up first.
        self.side.report(host, devices, HANDLES)
        # Not while it is counted what is asked, since that keeps the broker busy.
        took = self._timed(lambda: self.side.report(host, devices, HANDLES))
        found = {f"unchanged report {devices}": 1000 * took}
        if devices == _COUNTED:
            with self._asked("an unchanged report") as asked:
                self.side.report(host, devices, HANDLES)
            found |= asked
        return found

    def many_hosts(self, count: int) -> dict[str, float]:
        """Hosts a minute, each with 8 devices: new ones, and the same once more."""
        hosts = self._new_hosts(count)
        first = self._timed(lambda: self._report(hosts, 8))
        time.sleep(1)
        again = self._timed(lambda: self.side.report(hosts, 8, HANDLES))
        return {"hosts first": 60 * count / first, "hosts unchanged": 60 * count / again}

    def add_hosts(self, count: int, devices: int, at_once: int) -> Added:
        """Add hosts, and wait until Placement holds all their devices."""
        hosts = self._new_hosts(count)
        begin = time.perf_counter()
        self.side.report(hosts, devices, HANDLES, at_once)
        for host in hosts:
            self._await_providers(host, devices)
        return Added(hosts, time.perf_counter() - begin)

    def _report(self, hosts: list[str], devices: int) -> None:
        self.side.report(hosts, devices, HANDLES)
        for host in hosts:
            self._await_providers(host, devices)

    def _new_hosts(self, count: int) -> list[str]:
        hosts = [f"benchmark-{next(self._hosts)}" for _ in range(count)]
        self._roots(hosts)
        return hosts

    def _roots(self, hosts: list[str]) -> None:
        """The root providers, as nova-compute makes them; ours has another name than upstream's."""
        for name in hosts:
            self._root(f"{name}.example" if self.side.kind.name == "ours" else name)

    def _root(self, name: str) -> None:
        url = f"{self.side.neighbours.placement}/resource_providers"
        requests.post(url, json={"name": name}, headers=_PLACEMENT, timeout=60)

    def _await_providers(self, host: str, count: int) -> None:
        def held() -> bool:
            found = self._placement.execute(_READY, (f"{host}_*",)).fetchone()
            return bool(found[0] >= count)

        until(f"{count} providers of {host}", held, 600, pause=0.02)

    @staticmethod
    def _timed(work: Callable[[], None]) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    def grow(self, count: int) -> None:
        """Let there be ``count`` ARQs more, of nobody."""
        body = {"device_profile_name": "take-1"}
        self.ask("POST", "/accelerator_requests", body)
        table = self.side.kind.arqs
        with self._engine.connect() as connection:
            columns = [one["name"] for one in sa.inspect(connection).get_columns(table)]
            names = [name for name in columns if name != "id"]
            # Of another project: one may only have so many.
            changed = {"uuid": "UUID()", "project_id": "REPEAT('2', 32)"}
            values = [changed.get(name, f"one.`{name}`") for name in names]
            listed = ", ".join(f"`{name}`" for name in names)
            statement = _CLONE.format(
                table=table, names=listed, values=", ".join(values), count=count
            )
            connection.execute(sa.text(statement))

    def listed(self, path: str, key: str) -> float:
        """Milliseconds that a list of 1,000 takes: for each thousand, if there are others."""
        found = client.listed(self.ask, path, key)
        if found is None:
            raise Failed(f"{self.side.kind.name}: the list {path} is empty")
        return found

    def memory(self) -> dict[str, float]:
        """MiB of each service."""
        # Upstream's agent ends if its root provider is not there.
        self._root("benchmark")
        self.side.start_agent()
        time.sleep(10)
        names = ("api", "conductor", "agent")
        return {f"memory {name}": readings.pss(self.side.pids(name)) for name in names}

    def close(self) -> None:
        """Let go of the databases."""
        self._engine.dispose()
        self._placement.close()
