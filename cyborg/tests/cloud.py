# SPDX-License-Identifier: Apache-2.0
"""One host, its conductor and Nova, so small that a test can decide what happens next."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from placement import db_api as placement_db
from sqlalchemy import orm

from cyborg import db, profiles, rpc, work
from cyborg.arqs import binding, service
from cyborg.common import errors
from cyborg.conductor import service as conductor
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.placement_server import PlacementServer

CLASSES = ("FPGA", "CUSTOM_OTHER")
HANDLES = 3

#: What the drivers of the three cards do with a handle before and after use.
ABILITIES = {
    "a": {"prepares": False, "cleans": False},
    "b": {"prepares": False, "cleans": True},
    "c": {"prepares": True, "cleans": True, "clean_erases": True},
}


#: How a conductor dies. To it, that Placement's answer is lost looks the same.
DEATHS = ("before a commit", "after a commit", "in a host step", "no answer")

#: Seconds that no test takes.
_LEASE = 3600


#: Lets what is due be so in the order of the rows.
_LINE_UP = (
    sa.update(models.Work)
    .where(
        models.Work.due_ms <= db.now_ms(),
        sa.or_(models.Work.owner.is_(None), models.Work.lease_ms < db.now_ms()),
    )
    .values(due_ms=models.Work.id)
)


def _hurry(engine: sa.Engine) -> None:
    """Keep the connections to an SQLite file, and let it be lost if the power fails."""
    if engine.dialect.name != "sqlite":
        return
    for hook in list(engine.pool.dispatch.checkin):
        # It lets greenlets of Eventlet run, by a system call.
        sa.event.remove(engine, "checkin", hook)
    sa.event.listen(engine, "connect", lambda new, _: new.execute("PRAGMA synchronous=OFF"))
    sa.event.listen(engine, "checkin", _roll_back)
    engine.pool = sa.QueuePool(
        engine.pool._creator,  # oslo.db has but pools that keep nothing
        dialect=engine.dialect,
        _dispatch=engine.pool.dispatch,
    )


def _roll_back(
    connection: sqlite3.Connection | None, record: sa.pool.ConnectionPoolEntry
) -> None:
    """What somebody who was killed has begun is no more."""
    if connection is not None:
        connection.rollback()
    record.info.pop("in_transaction", None)


class Killed(BaseException):
    """The conductor's process is gone."""


@dataclass(slots=True)
class Card:
    """One card of the host as it is, whoever knows."""

    letter: str
    plugged: bool = False
    resource_class: str = CLASSES[0]
    handles: set[int] = field(default_factory=lambda: set(range(HANDLES)))
    unhealthy: str | None = None
    #: Whether its accelerators are those of a part of it.
    nested: bool = False

    @property
    def name(self) -> str:
        return f"host-1_{self.letter}"

    @property
    def whole(self) -> str:
        """The name of the deployable that the part is below."""
        return f"{self.name}_whole"

    @property
    def provider(self) -> str:
        return provider_uuid(self.name)

    def device(self) -> base.Device:
        """The card as its driver finds it."""
        first = ord(self.letter) * HANDLES
        numbers = [first + number for number in sorted(self.handles)]
        abilities = ABILITIES[self.letter]
        part = hosts.deployable(
            self.name,
            numbers,
            resource_class=self.resource_class,
            parent=self.whole if self.nested else None,
            **abilities,
        )
        above = [hosts.deployable(self.whole, [])] if self.nested else []
        return hosts.device(self.letter, part, *above, unhealthy=self.unhealthy)


@dataclass(slots=True)
class Instance:
    """A guest as Nova sees it."""

    uuid: str
    arq: str
    card: Card


class Cloud:
    """The parts around the machine, which outlive its runs."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        ctx: context.RequestContext,
        placement: PlacementServer,
    ) -> None:
        self.conf = conf
        self.ctx = ctx
        self.placement = placement
        self.handlers = conductor.handlers(conf)
        placement.answer_at_once(conf)
        self._engine = db.engine()
        of_placement = placement_db.placement_context_manager.writer.get_engine()
        for each in (self._engine, of_placement):
            _hurry(each)
        self._owners = itertools.count()
        #: Commits until the process is killed, before or after the last of them.
        self.commits_left: int | None = None
        self.kill_before = False
        self.pieces_done = 0
        #: What becomes of host steps.
        self.agent = "works"
        #: Numbers of handles that have been cleaned.
        self.cleaned: set[int] = set()
        self.cards: dict[str, Card] = {}

    def renew(self) -> None:
        """Empty the database and Placement, but for the root that Nova made."""
        self.live()
        with db.writer() as session:
            for table in reversed(models.Base.metadata.sorted_tables):
                session.execute(table.delete())
        if self.placement.find(hosts.ROOT) is None:
            self.placement.make_provider(hosts.ROOT)
            self.placement.call("PUT", "/resource_classes/CUSTOM_OTHER")
        else:
            self.placement.empty()
        self.cleaned.clear()
        for resource_class in CLASSES:
            groups = [{f"resources:{resource_class}": "1"}]
            profiles.create_profile(name=resource_class, groups=groups, description=None, uuid=None)
        self.cards = {letter: Card(letter) for letter in ABILITIES}

    def live(self) -> None:
        """Let everything work."""
        self.commits_left = None
        self.placement.lose_answer_after = None
        self.placement.delay_after = None
        self.agent = "works"

    @contextlib.contextmanager
    def dying(self, how: str, count: int) -> Iterator[None]:
        """While a conductor works and is killed in one of the ways ``DEATHS``, if it gets there."""
        agent = self.agent
        if how == "in a host step":
            self.agent = "kills"
        elif how == "no answer":
            self.placement.lose_answer_after = count
        else:
            self.commits_left, self.kill_before = count, how.startswith("before")
        with contextlib.suppress(Killed):
            yield
        self.live()
        self.agent = agent

    def before_commit(self, connection: sa.Connection) -> None:
        """Die instead of committing, where it is time."""
        if self.kill_before:
            self._count()

    def after_commit(self, session: orm.Session) -> None:
        """Die right after a commit, where it is time."""
        # Placement commits too, and lives on.
        if not self.kill_before and session.get_bind() is self._engine:
            self._count()

    def write(
        self, statement: sa.Update | sa.Delete, given: Mapping[str, Any], write: Any = db.write
    ) -> int:
        """Die right after a statement that is a transaction by itself, where it is time."""
        matching: int = write(statement, given)
        if not self.kill_before:
            self._count()
        return matching

    def _count(self) -> None:
        if self.commits_left is not None:
            self.commits_left -= 1
            if self.commits_left < 0:
                raise Killed

    def run_host_step(
        self, conf: cfg.ConfigOpts, host: str, step: rpc.HostStep, timeout: float
    ) -> None:
        """The agent's side: it can only work on what the host has."""
        if self.agent == "kills":
            raise Killed
        if self.agent == "is away":
            raise rpc.HostUnreachable("the agent does not answer")
        number = int(step.attach_info["device"], 16)
        card = self.cards[chr(number // HANDLES)]
        if self.agent == "fails" or not card.plugged or number % HANDLES not in card.handles:
            raise rpc.HostStepFailed(f"cannot {step.action} it")
        if step.action == "clean":
            self.cleaned.add(number)

    def do_one(self, kinds: Collection[str] | None = None) -> bool:
        """Do one piece of work, of some kinds, as a conductor does; False where none is due.

        What is due, and in which order, must not hang on the clock: Hypothesis repeats histories.
        """
        row = models.Work
        with self._immortal(), self._engine.begin() as connection:
            if not connection.execute(_LINE_UP).rowcount:
                return False
        item = engine.take(f"test#{next(self._owners)}", _LEASE, kinds or self.handlers)
        if item is None:
            return False
        try:
            self.handlers[item.kind](item)
        except (errors.CyborgError, ka_exc.ClientException) as exc:
            work.back_off(item, str(exc), getattr(exc, "error_code", None))
            later = (row.id == item.id, row.wanted == item.wanted)
            with self._immortal(), db.writer() as session:
                db.update(session, row, *later, due_ms=db.now_ms() + _LEASE * 1000)
        else:
            self.pieces_done += work.finish(item)
        return True

    def let_time_pass(self) -> None:
        """Back-offs and leases end."""
        with db.writer() as session:
            db.update(session, models.Work, due_ms=0, lease_ms=0)

    def report(self) -> None:
        """The agent reports what is plugged in, and all that follows is done."""
        hosts.apply(*(card.device() for card in self.cards.values() if card.plugged))
        self.work_off()

    def work_off(self) -> None:
        """Do all that can be done."""
        for _ in range(3):
            self.let_time_pass()
            while self.do_one():
                pass

    def boot(self, letter: str) -> tuple[str, str]:
        """Make an instance with an accelerator of that card, and return it and its ARQ."""
        instance, card = models.new_uuid(), self.cards[letter]
        self.placement.allocate(instance, card.provider, FPGA=1)
        (arq,) = service.create(self.ctx, "FPGA")
        target = boots.target(instance, device_rp_uuid=card.provider)
        binding.request_changes(self.ctx, {arq.uuid: target}, [])
        self.work_off()
        return instance, arq.uuid

    def go_down(self, name: str = "host-1") -> None:
        """The host of that name is dead, and a conductor has noticed."""
        with db.writer() as session:
            db.update(session, models.Host, models.Host.name == name, down=True)

    def offered(self, letter: str) -> int:
        """How many accelerators of that card Placement offers."""
        ((total, reserved),) = self.placement.offered(self.cards[letter].provider).values()
        return total - reserved

    def rows(self, *tables: type[models.Base]) -> dict[str, int]:
        """How many rows there are, where there are any."""
        with db.reader() as session:
            counts = {
                table.__tablename__: session.scalar(sa.select(sa.func.count()).select_from(table))
                for table in tables
            }
        return {name: count for name, count in counts.items() if count}

    @contextlib.contextmanager
    def _immortal(self) -> Iterator[None]:
        """Let no commit be the last."""
        left, self.commits_left = self.commits_left, None
        yield
        self.commits_left = left


@pytest.fixture
def host_with_cards(cloud: Cloud) -> None:
    """One host with three cards, in Placement, with nothing left to be done."""
    cloud.renew()
    for card in cloud.cards.values():
        card.plugged = True
    cloud.report()


@pytest.fixture
def cloud(
    conf: cfg.ConfigOpts,
    database: sa.Engine,
    ctx: context.RequestContext,
    placement: PlacementServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Cloud]:
    """The parts of a cloud; ``renew`` begins a history of it."""
    found = Cloud(conf, ctx, placement)
    monkeypatch.setattr(rpc, "run_host_step", found.run_host_step)
    monkeypatch.setattr(db, "write", found.write)
    sa.event.listen(database, "commit", found.before_commit)
    sa.event.listen(orm.Session, "after_commit", found.after_commit)
    yield found
    sa.event.remove(orm.Session, "after_commit", found.after_commit)
    sa.event.remove(database, "commit", found.before_commit)
