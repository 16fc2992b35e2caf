# SPDX-License-Identifier: Apache-2.0
"""The faults of a round: a plan made from the seed, and its execution."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import doubles
import parts
import sqlalchemy as sa
from cloud import HOSTS, QUICK, Cloud, replace, tail
from clusters import Faults
from ledger import Ledger
from oslo_db import exception as db_exc
from parts import Part
from points import NAMED, Arm
from waiting import Failed

from cyborg import db
from cyborg.rpc import client as rpc_client

#: Seconds between two looks at the processes.
_TICK = 0.02
#: Seconds that a fault, and all faults of a storm together, wait for clients to make progress.
_PATIENCE = 2.0
MOST_LATE = 20.0

#: Each fault's weight in the draw, and its shortest and longest duration in seconds.
FAULTS: Faults = {
    "kill": (50, 0.0, 1.5),
    "stop a process": (10, 0.5, 1.6 * QUICK["work_lease"]),
    "break RabbitMQ's connections": (3, 0.0, 0.0),
    "restart RabbitMQ": (2, 0.0, 0.0),
    "cut the way to RabbitMQ": (5, 0.5, 4.0),
    "hold messages": (6, 1.0, 4.0),
    "double messages": (6, 2.0, 6.0),
    "kill database connections": (8, 0.0, 0.0),
    "spoil the sink": (6, 1.0, 5.0),
    "spoil host steps": (8, 1.0, 5.0),
}
_SPOILT_SINK = (parts.DROP, parts.HANG, *parts.REFUSALS)
_SPOILT_STEPS = (
    {"prepare": {"seconds": 1.0}, "clean": {"seconds": 1.0}},
    {"prepare": {"fail": "out of order"}},
    {"clean": {"fail": "out of order"}},
    {"prepare": {"hang": True}},
    {"clean": {"hang": True}},
)


_CONNECTIONS = {
    "mysql": "SELECT id FROM information_schema.processlist"
    " WHERE db = DATABASE() AND id <> CONNECTION_ID()",
    "postgresql": "SELECT pid FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()",
}
_KILL = {"mysql": "KILL :id", "postgresql": "SELECT pg_terminate_backend(:id)"}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, its moment in the round and its duration, in seconds."""

    at: float
    kind: str
    seconds: float
    #: A number from 0 to 1 that chooses its victim.
    draw: float


def plan(rng: random.Random, seconds: float, per_second: float, faults: Faults) -> list[Fault]:
    """The faults of a round, in order."""
    weights = [weight for weight, _, _ in faults.values()]
    kinds = rng.choices(list(faults), weights, k=round(seconds * per_second))
    moments = sorted(rng.uniform(0, seconds) for _ in kinds)
    return [
        Fault(at=at, kind=kind, seconds=rng.uniform(*faults[kind][1:]), draw=rng.random())
        for at, kind in zip(moments, kinds, strict=True)
    ]


class Arms:
    """Hands out the named points in turn. One at which no process died is handed out again."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._left = {kind: rng.sample(named, len(named)) for kind, named in NAMED.items()}
        self.died_at: set[str] = set()

    def draw(self, kind: str) -> Arm | None:
        """The next point at which a process of this kind is to kill itself."""
        left = self._left.get(kind)
        if left is None:
            return None
        if not left:
            left.extend(self._rng.sample(NAMED[kind], len(NAMED[kind])))
        return Arm(point=left.pop(0), times=self._rng.choice((1, 1, 2, 3)))

    def delay(self) -> float:
        """Seconds that a process runs before it is given a point."""
        return self._rng.uniform(0.2, 3.0)

    def died(self, kind: str, arm: Arm) -> None:
        """A process died at its point."""
        self.died_at.add(f"{kind}: {arm.point}")

    def returned(self, kind: str, arm: Arm) -> None:
        """The process ended otherwise; hand the point out again later."""
        self._left[kind].append(arm.point)


class Storm:
    """Executes plans on the cloud, counts what it did, and repairs everything afterwards."""

    def __init__(self, cloud: Cloud, ledger: Ledger, arms: Arms) -> None:
        self._cloud = cloud
        self._cluster = cloud.servers.cluster
        self._ledger = ledger
        self._arms = arms
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._broker: threading.Thread | None = None
        self._doublers: list[doubles.Doubler] = []
        self._is_cut = self._raging = False
        #: Kills at a random moment, and by a process itself at a named point.
        self.kills = self.kills_at_points = 0

    @property
    def faults(self) -> Faults:
        """What may happen to this cloud."""
        return FAULTS | (self._cluster.faults if self._cluster is not None else {})

    def run(self, faults: Sequence[Fault]) -> None:
        """Let the faults happen, later than planned if clients make no progress between two."""
        self._raging = True
        for part in self._cloud.parts.values():
            self._arm_later(part)
        begin, late = time.monotonic(), 0.0
        for fault in faults:
            done = self._ledger.done()
            due = begin + fault.at + late
            while time.monotonic() < due or (
                self._ledger.done() == done and time.monotonic() < due + _PATIENCE
            ):
                self._tick()
            late += max(0.0, time.monotonic() - due)
            if late > MOST_LATE:
                break
            self._strike(fault)

    def end(self) -> None:
        """Undo every fault; return when every process is started again."""
        self._raging = False
        for part in self._cloud.parts.values():
            self._disarm(part)
        self._undo()
        for part in self._cloud.parts.values():
            if part.stopped:
                part.go_on()
        if self._broker is not None:
            self._broker.join()
        if self._cluster is not None:
            self._cluster.heal()
        for doubler in self._doublers:
            doubler.join()
            self._ledger.count("messages doubled", doubler.copies)
        self._doublers.clear()
        # A process may have been about to kill itself when its point was removed.
        time.sleep(10 * _TICK)
        for part in self._cloud.parts.values():
            if not part.alive and part.status == -signal.SIGKILL:
                part.start()

    def _undo(self) -> None:
        while self._later:
            heapq.heappop(self._later)[2]()

    def _tick(self) -> None:
        for part in self._cloud.parts.values():
            if not part.alive and not part.down:
                self._died(part)
        while self._later and self._later[0][0] <= time.monotonic():
            heapq.heappop(self._later)[2]()
        time.sleep(_TICK)

    def _died(self, part: Part) -> None:
        """Restart a process that killed itself; no process may end in another way."""
        if part.arm is None or part.status != -signal.SIGKILL:
            raise Failed(f"{part.name} ended, status {part.status}:\n{tail(part.log)}")
        self.kills_at_points += 1
        self._arms.died(part.kind, part.arm)
        self._restart(part, 0.5)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        moment = time.monotonic() + seconds
        heapq.heappush(self._later, (moment, next(self._numbers), action))

    def _restart(self, part: Part, seconds: float) -> None:
        part.down = True

        def start() -> None:
            part.start()
            self._arm_later(part)

        self._after(seconds, start)

    def _arm_later(self, part: Part) -> None:
        def arm() -> None:
            if self._raging and part.arm is None and not part.down:
                drawn = self._arms.draw(part.kind)
                if drawn is not None:
                    part.set_arm(drawn)

        self._after(self._arms.delay(), arm)

    def _disarm(self, part: Part) -> None:
        arm = part.disarm()
        if arm is not None:
            self._arms.returned(part.kind, arm)

    def _strike(self, fault: Fault) -> None:
        if self._cluster is not None and fault.kind in self._cluster.faults:
            if self._cluster.strike(fault.kind, fault.seconds):
                self._count(fault)
            return
        {
            "kill": self._kill,
            "stop a process": self._stop,
            "break RabbitMQ's connections": self._break_connections,
            "restart RabbitMQ": self._restart_broker,
            "cut the way to RabbitMQ": self._cut,
            "hold messages": self._hold,
            "double messages": self._double,
            "kill database connections": self._kill_connections,
            "spoil the sink": self._spoil_sink,
            "spoil host steps": self._spoil_steps,
        }[fault.kind](fault)

    def _count(self, fault: Fault) -> None:
        self._ledger.count(f"fault: {fault.kind}")

    def _pick(self, fault: Fault, *, not_sink: bool = False) -> Part | None:
        """The process that a fault hits: one that runs."""
        able = [
            part
            for part in self._cloud.parts.values()
            if part.alive and not part.down and not part.stopped
            if part.kind != "sink" or not not_sink
        ]
        return able[int(fault.draw * len(able))] if able else None

    def _kill(self, fault: Fault) -> None:
        part = self._pick(fault)
        if part is None:
            return
        part.kill()
        self._disarm(part)
        self.kills += 1
        self._ledger.count(f"kills of {part.name}")
        self._restart(part, fault.seconds)

    def _stop(self, fault: Fault) -> None:
        part = self._pick(fault, not_sink=True)
        if part is not None:
            part.stop()
            self._after(fault.seconds, part.go_on)
            self._count(fault)

    def _with_broker(self, fault: Fault, *arguments: str) -> None:
        """Run a command on RabbitMQ unless one is running; it may take longer than the round."""
        if self._broker is None or not self._broker.is_alive():
            run = self._cloud.servers.run
            self._broker = threading.Thread(target=run, args=arguments, daemon=True)
            self._broker.start()
            self._count(fault)

    def _break_connections(self, fault: Fault) -> None:
        self._with_broker(fault, "rabbitmqctl", "close_all_connections", "chaos")

    def _restart_broker(self, fault: Fault) -> None:
        self._with_broker(fault, "restart", "rabbitmq")

    def _cut(self, fault: Fault) -> None:
        if not self._is_cut:
            self._is_cut = True
            self._cloud.wire.cut()
            self._after(fault.seconds, self._join)
            self._count(fault)

    def _join(self) -> None:
        self._is_cut = False
        self._cloud.wire.join()

    def _hold(self, fault: Fault) -> None:
        wire = self._cloud.wire
        wire.delay = 1.5 * fault.draw
        self._after(fault.seconds, lambda: setattr(wire, "delay", 0.0))
        self._count(fault)

    def _double(self, fault: Fault) -> None:
        agents = (f"{rpc_client.AGENT_TOPIC}.{host}" for host in HOSTS)
        queues = [rpc_client.CONDUCTOR_TOPIC, *agents]
        doubler = doubles.Doubler(self._cloud.broker, queues, random.Random(fault.draw))
        self._doublers.append(doubler)
        doubler.start()
        self._after(fault.seconds, doubler.stop)
        self._count(fault)

    def _kill_connections(self, fault: Fault) -> None:
        # One of a cluster may have no answer at present.
        with contextlib.suppress(db_exc.DBConnectionError, sa.exc.OperationalError):
            self._kill_connections_now(fault)

    def _kill_connections_now(self, fault: Fault) -> None:
        kind = self._cloud.servers.database_kind
        with db.engine().connect() as connection:
            ids = connection.execute(sa.text(_CONNECTIONS[kind])).scalars()
            # Kill all of them, or about half.
            chosen = [id_ for id_ in ids.all() if fault.draw < 0.5 or id_ % 2]
            for id_ in chosen:
                # It may be closed already.
                with contextlib.suppress(sa.exc.DBAPIError):
                    connection.execute(sa.text(_KILL[kind]), {"id": id_})
        self._ledger.count("database connections killed", len(chosen))
        self._count(fault)

    def _spoil_sink(self, fault: Fault) -> None:
        self._cloud.set_sink(_SPOILT_SINK[int(fault.draw * len(_SPOILT_SINK))])
        self._after(fault.seconds, lambda: self._cloud.set_sink(parts.TAKE))
        self._count(fault)

    def _spoil_steps(self, fault: Fault) -> None:
        hosts = [host for host, steps in HOSTS.items() if steps]
        host = hosts[int(fault.draw * 1000) % len(hosts)]
        how = _SPOILT_STEPS[int(fault.draw * len(_SPOILT_STEPS))]
        replace(self._cloud.control(host), json.dumps(how))
        self._after(fault.seconds, lambda: replace(self._cloud.control(host), "{}"))
        self._count(fault)
