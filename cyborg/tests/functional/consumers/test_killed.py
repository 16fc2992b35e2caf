# SPDX-License-Identifier: Apache-2.0
"""Many clients allocate, renew and delete at random, leases end, and services are killed.

At the end Placement, the database and the files for containers agree, and nothing is held by
nobody. A conductor is killed at a random statement, or before or after a request to Placement or to
an agent, and an agent between a step and its answer. CYBORG_TEST_CONSUMER_CALLS is how
many calls the clients make, and CYBORG_TEST_CONSUMER_SEED repeats a run's chances; threads run in
another order each time.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from oslo_db import exception as db_exc

from cyborg import db, profiles, rpc, work
from cyborg.allocations import plans, service, wishes
from cyborg.audits import consistency
from cyborg.common import errors
from cyborg.conductor import service as conductor_service
from cyborg.db import models
from cyborg.placement import client
from cyborg.policy.enforcer import Enforcer
from cyborg.states import allocation_states as states
from cyborg.tests import callers, hosts
from cyborg.tests.killed_agents import Agents
from cyborg.tests.placement_server import PlacementServer

pytestmark = pytest.mark.slow

LOG = logging.getLogger(__name__)

CALLS = int(os.environ.get("CYBORG_TEST_CONSUMER_CALLS", "80"))
SEED = int(os.environ.get("CYBORG_TEST_CONSUMER_SEED", "7"))
CLIENTS = 16
#: Conductors that work at the same time, each until it is killed.
CONDUCTORS = 3
CONSUMERS = [f"c0000000-0000-4000-8000-{number:012d}" for number in range(40)]
PROVIDERS = ("host-1_a", "host-1_b", "host-2_x")


class Killed(Exception):
    """The conductor ends here."""


class Site:
    """Two hosts, clients, and conductors that die."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        enforcer: Enforcer,
        placement: PlacementServer,
        agents: Agents,
    ) -> None:
        self.conf = conf
        self.placement = placement
        self.agents = agents
        self.came: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.ending = threading.Event()
        self.left = threading.local()
        self.handlers = conductor_service.handlers(conf)
        self.numbers = itertools.count()
        self.ctx = callers.admin(enforcer, project_id="project-1")

    def note(self, what: str) -> None:
        with self.lock:
            self.came[what] += 1

    # Death.

    def count(self, *_arguments: object) -> None:
        """Die where it is time: called before each statement and around calls to Placement."""
        left = getattr(self.left, "number", None)
        if left is not None:
            self.left.number = left - 1
            if left <= 0:
                self.left.number = None
                raise Killed("here")

    @contextlib.contextmanager
    def mortal(self, chance: random.Random) -> Iterator[None]:
        """Perhaps die within the block."""
        self.left.number = chance.randint(0, 12) if chance.random() < 0.7 else None
        try:
            yield
        finally:
            self.left.number = None

    # What happens.

    def act(self, chance: random.Random) -> None:
        """One call of a client."""
        consumer = chance.choice(CONSUMERS)
        what = chance.choices(["allocate", "renew", "expire", "delete"], [5, 2, 1, 3])[0]
        try:
            getattr(self, what)(consumer, chance)
        except errors.CyborgError as exc:
            self.note(f"{what}: {type(exc).__name__}")
        else:
            self.note(f"{what}: done")

    def allocate(self, consumer: str, chance: random.Random) -> None:
        one, two = {"device_profile_name": "one"}, {"device_profile_name": "two"}
        asked: dict[str, Any] = chance.choice(
            [one, {"alternatives": [two, one]}, {"parts": [one, {**one, "hosts": "host-2"}]}]
        )
        body = {
            "consumer": {"uuid": consumer, "type": "JOB"},
            "placing": chance.choice([plans.PACK, plans.SPREAD]),
            "lease_seconds": 3600,
            **asked,
        }
        service.create(self.conf, self.ctx, wishes.read(self.ctx, consumer, body), {})
        service.await_end(self.ctx, consumer, 2)

    def renew(self, consumer: str, _chance: random.Random) -> None:
        service.renew(self.ctx, consumer, None)

    def expire(self, consumer: str, _chance: random.Random) -> None:
        with db.writer() as session:
            row = models.Allocation
            db.update(session, row, row.uuid == consumer, lease_ms=1)
        service.release_expired(self.conf)

    def delete(self, consumer: str, _chance: random.Random) -> None:
        service.delete(self.ctx, consumer)

    # The processes.

    def be_client(self, number: int) -> None:
        chance = random.Random(f"{SEED}/{number}")
        for _ in range(CALLS // CLIENTS + 1):
            with contextlib.suppress(errors.ServiceUnavailable):
                self.act(chance)
            time.sleep(chance.uniform(0, 0.4))

    def be_conductor(self, number: int) -> None:
        """Do work until none is left, die, and be started again, when the lease has ended."""
        chance = random.Random(f"{SEED}/conductor/{number}")
        worked = True
        while worked or not self.ending.is_set():
            owner = f"conductor-{number}#{next(self.numbers)}"
            try:
                worked = self.work(owner, chance)
            except (Killed, db_exc.DBError):
                # oslo.db wraps what is raised there.
                self.note("killed")
                work.hand_back([owner])
                worked = True
            else:
                if not worked:
                    time.sleep(0.01)

    def work(self, owner: str, chance: random.Random | None = None) -> bool:
        """Do one piece of work, as a conductor does; with ``chance`` it may die of it."""
        kinds = dict.fromkeys((*self.handlers,), 1)
        claims, _ = work.take(iter([owner]), 3600, kinds)
        for item in claims:
            self.note(f"work: {item.kind}")
            try:
                with self.mortal(chance) if chance else contextlib.nullcontext():
                    self.handlers[item.kind](item)
            except work.LeaseLost:
                pass
            except (errors.CyborgError, ka_exc.ClientException) as exc:
                work.back_off(item, str(exc))
            else:
                work.finish(item)
        return bool(claims)

    def run(self) -> None:
        """All at once, until the clients are done, and their work."""
        conductors = [
            threading.Thread(target=self.be_conductor, args=(number,))
            for number in range(CONDUCTORS)
        ]
        clients = [
            threading.Thread(target=self.be_client, args=(number,)) for number in range(CLIENTS)
        ]
        for thread in (*conductors, *clients):
            thread.start()
        for thread in clients:
            thread.join()
        self.ending.set()
        for thread in conductors:
            thread.join()

    def settle(self) -> None:
        """Do all that is left to be done, and nobody dies."""
        while True:
            with db.writer() as session:
                db.update(session, models.Work, due_ms=0, owner=None, lease_ms=None)
            if not self.work(f"last#{next(self.numbers)}"):
                return

    def held(self) -> dict[str, Counter[str]]:
        """What each consumer has in Placement, by provider."""
        found: dict[str, Counter[str]] = {}
        for name in PROVIDERS:
            provider = self.placement.find(name)
            answer = self.placement.call("GET", f"/resource_providers/{provider}/allocations")
            for consumer, what in answer["allocations"].items():
                found.setdefault(consumer, Counter())[str(provider)] += what["resources"]["FPGA"]
        return found


@pytest.fixture
def mortal_site(conf, database, placement, enforcer, monkeypatch, tmp_path) -> Iterator[Site]:
    for name in ("host-1", "host-2"):
        placement.make_provider(f"{name}.example")
    agents = Agents(conf, tmp_path / "cdi", SEED)
    agents.start("host-1", hosts.card("a", range(12)), hosts.card("b", range(12, 18)))
    agents.start("host-2", hosts.device("x", hosts.deployable("host-2_x", range(9))))
    fpga = {"resources:FPGA": "1"}
    profiles.create_profile(name="one", groups=[fpga], description=None)
    profiles.create_profile(name="two", groups=[fpga, fpga], description=None)
    found = Site(conf, enforcer, placement, agents)
    found.settle()
    call = client.Client._call

    def mortal_call(self: client.Client, *given: Any, **named: Any) -> Any:
        found.count()
        answer = call(self, *given, **named)
        found.count()
        return answer

    def mortal_step(*given: Any) -> None:
        found.count()
        agents.run_host_step(*given)
        found.count()

    monkeypatch.setattr(client.Client, "_call", mortal_call)
    monkeypatch.setattr(rpc, "run_host_step", mortal_step)
    for each in db.engines():
        sa.event.listen(each, "before_cursor_execute", found.count)
        sa.event.listen(each, "commit", found.count)
    yield found
    for each in db.engines():
        sa.event.remove(each, "before_cursor_execute", found.count)
        sa.event.remove(each, "commit", found.count)


def test_nothing_is_held_by_nobody(mortal_site: Site) -> None:
    mortal_site.run()
    mortal_site.settle()

    assert consistency.violations() == []
    with db.reader() as session:
        rows = list(session.scalars(sa.select(models.Allocation)))
        arqs = list(session.scalars(sa.select(models.Arq)))
        assert session.scalar(sa.select(sa.func.count(models.Work.id))) == 0
    assert {row.state for row in rows} <= {states.ACTIVE, states.FAILED}
    ours: dict[str, Counter[str]] = {}
    for arq in arqs:
        assert arq.state == models.BOUND
        ours.setdefault(str(arq.consumer_uuid), Counter())[str(arq.device_rp_uuid)] += 1
    assert ours == mortal_site.held()
    assert ours.keys() == {row.uuid for row in rows if row.state == states.ACTIVE}
    given = sorted((str(arq.hostname).removesuffix(".example"), arq.uuid) for arq in arqs)
    assert mortal_site.agents.files() == given
    LOG.info("What came of it: %s", sorted(mortal_site.came.items()))
    for what in ("allocate: done", "killed"):
        assert mortal_site.came[what], what

    assert mortal_site.agents.killed.keys() == {"host-1", "host-2"}

    for row in rows:
        service.delete(mortal_site.ctx, row.uuid)
    mortal_site.settle()
    assert mortal_site.held() == {}
    assert mortal_site.agents.files() == []
    assert mortal_site.agents.drafts() == []
    with db.reader() as session:
        for table in (models.Allocation, models.Arq):
            assert session.scalar(sa.select(sa.func.count(table.id))) == 0
