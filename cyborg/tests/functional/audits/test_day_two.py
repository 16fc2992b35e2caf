# SPDX-License-Identifier: Apache-2.0
"""A random life of a host: binds, releases, failures, drains, taints, forced releases and kills.

The parties overlap. While a host does a step, others act, and also another conductor; a step may
hang before its effect, or a clean after it, and what waits for it goes on after the handle was
given up and bound again, or never, if the agent dies meanwhile. Now and then clients and a
conductor act at once, in threads of their own.

No dirty handle is given to anybody, and none is cleaned that a guest has; no quota is exceeded,
usage equals the history, and in the end Cyborg's, Placement's and Nova's books agree.
``CYBORG_TEST_DAY_TWO_STEPS`` makes the life longer, and ``CYBORG_TEST_DAY_TWO_SEED`` another one.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, history, profiles, quotas, rpc, work
from cyborg.arqs import binding, service
from cyborg.arqs.bind_requests import BindTarget
from cyborg.audits import consistency, differences, uses
from cyborg.common import errors
from cyborg.common.request_groups import TOLERATE_TAINT
from cyborg.db import models
from cyborg.drivers import base
from cyborg.handles import giving_up, release
from cyborg.hosts import draining, flags
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.policy.enforcer import Enforcer
from cyborg.tests import callers, engine, hanging_host, hosts
from cyborg.tests.killing import Killed, killing
from cyborg.tests.placement_server import PlacementServer

pytestmark = pytest.mark.slow

LOG = logging.getLogger(__name__)

#: On SQLite, and on a server, whose statements take longer; or as many as one wants.
STEPS, STEPS_ON_SERVERS = (
    int(os.environ.get("CYBORG_TEST_DAY_TWO_STEPS", number)) for number in ("400", "120")
)
#: From here on each kind of step is taken.
MANY = 400
SEED = int(os.environ.get("CYBORG_TEST_DAY_TWO_SEED", "20"))
#: How often everything is checked, and not only who has which handle.
THOROUGH = 25
HOUR_MS = 3_600_000

CARDS: dict[str, dict[str, Any]] = {
    # What a guest left on it is still there when it is back.
    "a": {"handles": range(4), "cleans": True, "clean_erases": True},
    "b": {"handles": range(4, 8), "cleans": True, "prepares": True},
    "c": {"handles": range(8, 12)},
}
LIMITS = {quotas.REQUESTS: 7, f"{quotas.CLASS}FPGA": 6}
PROJECTS = ("project-1", "project-2")
FPGA = {"resources:FPGA": "1"}


#: By the host's trouble: where its steps hang.
HANGS = {"hangs before": hanging_host.BEFORE, "hangs after": hanging_host.AFTER}


def place_of(info: Mapping[str, str]) -> str:
    """Where a handle is: the same when it is back."""
    return info["device"]


PLACES = {
    name: {place_of(hosts.handle(number).attach_info) for number in card["handles"]}
    for name, card in CARDS.items()
}


class Life:
    """The host, its users and administrators, and what they know of each other."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        enforcer: Enforcer,
        chance: random.Random,
        patch: pytest.MonkeyPatch,
    ) -> None:
        self.conf = conf
        self.chance = chance
        self.host = hanging_host.HangingHost(conf, self.touch, patch)
        self._reports = itertools.count(1)
        #: What the host has done that it must not do.
        self.wrong: list[str] = []
        #: Whether parties act while another one does, and no more of them may come.
        self.met = False
        self.at_once = False
        #: Whether an administrator gives up each handle whose step is under way.
        self.impatient = False
        #: How many requests of each project were created, at least.
        self.created: Counter[str] = Counter()
        self.users = {
            project: callers.admin(enforcer, project_id=project) for project in PROJECTS
        }
        #: What may be on a handle, by its place: the ARQ whose guest has had it.
        self.dirty: dict[str, str] = {}
        #: Where each instance has an allocation, and how much.
        self.allocations: dict[str, Counter[str]] = {}
        #: Instances that are to be deleted, since they have lost an ARQ.
        self.broken: set[str] = set()
        self.trouble = ""
        #: The card that the host has not, as long as its last report is true.
        self.away = ""
        #: The most hours that a usage has had.
        self.most_hours = 0.0
        self.cleaning = {f"host-1_{name}" for name, card in CARDS.items() if card.get("cleans")}
        self.kept = {
            place
            for name, card in CARDS.items()
            if card.get("clean_erases")
            for place in PLACES[name]
        }
        self.report()
        for name, count in (("one", 1), ("two", 2)):
            profiles.create_profile(name=name, groups=[FPGA] * count, description=None)
        tolerant = {**FPGA, TOLERATE_TAINT: "true"}
        profiles.create_profile(name="tolerant", groups=[tolerant], description=None)

    def report(self, without: str = "", ill: str = "") -> None:
        self.away = without
        hosts.apply(
            *(
                hosts.card(name, unhealthy="It is hot" if name == ill else None, **card)
                for name, card in CARDS.items()
                if name != without
            ),
            order=(self.host.started, next(self._reports)),
        )

    # What the host does.

    def run_host_step(self, _conf: object, _host: str, step: rpc.HostStep, _limit: float) -> None:
        place = place_of(step.attach_info)
        if self.trouble == "unreachable":
            raise rpc.HostUnreachable("no answer")
        if self.trouble == step.action:
            self.meet(step)
            raise rpc.HostStepFailed("the card does not answer")
        if self.away and place in PLACES[self.away]:
            raise rpc.HostStepFailed("the card is not on the bus")
        if self.trouble == "killed before":
            raise Killed("here")
        self.host.hangs = HANGS.get(self.trouble, "")
        try:
            self.host.run(step)
        finally:
            self.meet(step)
        if self.trouble == "killed after":
            raise Killed("here")

    def touch(self, action: str, handle: base.HeldHandle, *, late: bool) -> None:
        """What a step does on the host, in a thread of its agent."""
        place = place_of(handle.attach_info)
        holder, state = self.holders().get(handle.uuid, ("", ""))
        if action == "clean":
            if late and state == models.BOUND:
                # The agent was suspended just before it. The kernel refuses what a guest has open.
                raise OSError(errno.EBUSY, "a guest has it open")
            if state in models.SERVING and not late:
                self.wrong.append(f"{place} is cleaned while ARQ {holder} has it")
            self.dirty.pop(place, None)
        elif holder:
            if self.dirty.get(place, holder) != holder:
                self.wrong.append(f"{place} is prepared while it is not clean")
            self.dirty[place] = holder

    def meet(self, waits_for: rpc.HostStep) -> None:
        """Others act while the host is at work, and a conductor waits for it."""
        if self.met or (not self.impatient and self.chance.random() < 0.5):
            return
        handle = waits_for.attach_handle_uuid
        chosen = self.chance.choices(self.others(), k=self.chance.randint(1, 3))
        if self.impatient or self.chance.random() < 0.5:
            # The administrator does not wait any longer for just this one.
            chosen.append(lambda: self.give_up(handle))
        self.met = True
        try:
            for step in chosen:
                take(self, step)
                self.check()
        finally:
            self.met = False

    def others(self) -> list[Callable[[], None]]:
        clients = [self.create, self.bind, self.bind, self.unbind, self.delete]
        administrators = [self.give_up, self.give_up, self.close_device, self.look]
        return [*clients, self.delete_instance, *administrators, self.work, self.retry]

    # What everybody else does. Each returns nothing, and may be refused.

    def create(self) -> None:
        project = self.chance.choice(PROJECTS)
        service.create(
            self.users[project], self.chance.choice(["one", "two", "tolerant"]), LIMITS
        )
        self.created[project] += 1
        arq = models.Arq
        live = (arq.project_id == project, arq.state != models.DELETING)
        with db.reader() as session:
            number = session.scalars(sa.select(sa.func.count(arq.id)).where(*live)).one()
        assert number <= min(LIMITS.values())

    def bind(self) -> None:
        uuids = self.choose(models.INITIAL, models.UNBOUND)
        if not uuids:
            return
        name = self.chance.choice([*CARDS])
        rp, instance = provider_uuid(f"host-1_{name}"), models.new_uuid()
        target = BindTarget(hostname="host-1", device_rp_uuid=rp, consumer_uuid=instance)
        user = self.users[self.chance.choice(PROJECTS)]
        with self.closed(user, name):
            # It has claimed before, and gives the claim back if it is refused.
            self.allocations[instance] = Counter({rp: len(uuids)})
            try:
                binding.request_changes(user, dict.fromkeys(uuids, target), [])
            except errors.CyborgError:
                del self.allocations[instance]
                raise
            except Exception:
                # The API has died, and it is not known what it has done: Nova deletes the instance.
                self.broken.add(instance)
                raise

    @contextlib.contextmanager
    def closed(self, user: context.RequestContext, name: str) -> Iterator[None]:
        """Nothing is given to new requests by a card that is disabled, drained or ill."""
        with db.reader() as session:
            device, host = models.Device, models.Host
            query = (
                sa.select(device.status, device.unhealthy, device.tainted, host.drained)
                .join(host, host.id == device.host_id)
                .join(device.deployables)
                .where(models.Deployable.name == f"host-1_{name}")
            )
            found = session.execute(query).one_or_none()
        before = self.serving()
        yield
        new = self.serving() - before
        # With others at once it is not known which of both came first.
        if new and not self.at_once:
            assert found is not None
            status, unhealthy, tainted, drained = found
            assert (status, unhealthy, drained) == (models.ENABLED, None, False)
            profile_names = {
                arq.device_profile_name for arq in service.list_arqs(user) if arq.uuid in new
            }
            assert not tainted or profile_names == {"tolerant"}

    def unbind(self) -> None:
        uuids = self.choose(models.BOUND, models.BIND_STARTED, models.BIND_FAILED)
        self.lose(uuids)
        binding.request_changes(self.users[PROJECTS[0]], {}, uuids)

    def delete(self) -> None:
        uuids = self.choose(*(models.INITIAL, models.UNBOUND, models.BOUND, models.BIND_FAILED))
        self.lose(uuids)
        release.delete_arqs(self.users[PROJECTS[0]], uuids)

    def delete_instance(self) -> None:
        if self.allocations:
            instance = self.chance.choice(list(self.allocations))
            # Nova tries again what was not answered.
            self.broken.add(instance)
            release.delete_instance_arqs(self.users[PROJECTS[0]], instance)
            del self.allocations[instance]
            self.broken.discard(instance)

    def give_up(self, only: str | None = None) -> None:
        held = [(handle, arq) for handle, (arq, _) in self.holders().items()]
        left, places = self.leavers(), self.places()
        # Mostly what waits for the host, for which this is meant.
        known = [each for each in [*left, *left, *left, *held] if only in {None, each[0]}]
        if known:
            _, uuid = self.chance.choice(known)
            self.lose([uuid])
            given_up = giving_up.release_arq(self.users[PROJECTS[0]], uuid, force=True)
            # Whoever forces it has seen to it that the handle is clean.
            for each in given_up.arqs:
                self.dirty.pop(places.get(each.attach_handle_uuid or "", ""), None)

    def work(self) -> None:
        engine.drain(self.conf)

    def rush(self) -> None:
        """Clients and a conductor, each in a thread of its own."""
        clients = [self.create, self.create, self.bind, self.bind, self.delete, self.unbind]
        self.met = self.at_once = True
        try:
            with futures.ThreadPoolExecutor() as threads:
                for came in threads.map(lambda step: take(self, step), [*clients, self.work]):
                    LOG.debug("%s", came)
        finally:
            self.met = self.at_once = False

    def retry(self) -> None:
        with db.writer() as session:
            db.update(session, models.Work, due_ms=0, owner=None, lease_ms=None)
        engine.drain(self.conf)

    def lose_patience(self) -> None:
        """Cleans fail, and an administrator gives up each handle before that is known."""
        before, self.trouble, self.impatient = self.trouble, "clean", True
        try:
            self.retry()
        finally:
            self.trouble, self.impatient = before, False

    def disturb(self) -> None:
        kinds = ("", "", "prepare", "unreachable", "killed before", "killed after")
        self.trouble = self.chance.choice([*kinds, "clean", "clean", *HANGS, *HANGS])

    def go_on(self) -> None:
        """What hangs on the host ends, and what waited for it is done."""
        self.host.go_on()

    def die(self) -> None:
        """The agent's process ends, with all that hangs there; the next one may report later."""
        self.host.die()
        if self.chance.random() < 0.5:
            self.report()

    def close_device(self) -> None:
        uuid = self.device()
        change = (flags.disable_device, flags.enable_device, flags.enable_device)
        self.chance.choice([*change, flags.taint_device, flags.untaint_device])(uuid)

    def close_host(self) -> None:
        draining.drain("host-1", None, 1)

    def open_host(self) -> None:
        draining.undrain("host-1", 1)

    def let_time_pass(self) -> None:
        """All that has happened so far was some hours ago."""
        entry, hours = models.HistoryEntry, self.chance.uniform(0.1, 30)
        ago_ms = round(hours * HOUR_MS)
        with db.writer() as session:
            times = {"started_ms": entry.started_ms - ago_ms, "ended_ms": entry.ended_ms - ago_ms}
            db.update(session, entry, **times)

    def look(self) -> None:
        without, ill = (self.chance.choice(["", "", "", *CARDS]) for _ in range(2))
        self.report(without, ill)

    def pull(self) -> None:
        """A card is away for a moment that has a handle which could not be cleaned."""
        waiting = {arq for _, arq in self.leavers()}
        for name in ("a", "b"):
            if waiting & {self.dirty.get(place, "") for place in PLACES[name]}:
                self.report(without=name)
                self.retry()
                self.check()
                self.report()

    def device(self) -> str:
        with db.reader() as session:
            return self.chance.choice(
                list(session.scalars(sa.select(models.Device.uuid).order_by(models.Device.id)))
                or [models.new_uuid()]
            )

    def choose(self, *states: str) -> list[str]:
        with db.reader() as session:
            query = sa.select(models.Arq.uuid).where(models.Arq.state.in_(states))
            found = list(session.scalars(query.order_by(models.Arq.id)))
        self.chance.shuffle(found)
        return found[: self.chance.randint(1, 2)]

    def lose(self, uuids: list[str]) -> None:
        """Nova deletes the instance of an ARQ that was taken away from it."""
        with db.reader() as session:
            query = sa.select(models.Arq.consumer_uuid).where(models.Arq.uuid.in_(uuids))
            self.broken |= {instance for instance in session.scalars(query) if instance}

    # What must hold.

    def holders(self) -> dict[str, tuple[str, str]]:
        """The ARQ that holds each handle, and its state."""
        handle, arq = models.AttachHandle, models.Arq
        query = sa.select(handle.uuid, arq.uuid, arq.state).join(arq.attach_handle)
        query = query.order_by(handle.id)
        with db.reader() as session:
            return {row[0]: (row[1], row[2]) for row in session.execute(query)}

    def leavers(self) -> list[tuple[str, str]]:
        """Each handle that is not clean, and the ARQ that has left it."""
        handle = models.AttachHandle
        query = sa.select(handle.uuid, handle.left_arq).where(handle.is_left).order_by(handle.id)
        with db.reader() as session:
            return [(uuid, arq or "") for uuid, arq in session.execute(query)]

    def serving(self) -> set[str]:
        return {arq for arq, state in self.holders().values() if state in models.SERVING}

    def places(self, *deployables: str) -> dict[str, str]:
        """Where each handle is that the database knows, or of those deployables only."""
        handle, deployable = models.AttachHandle, models.Deployable
        query = sa.select(handle.uuid, handle.attach_info)
        if deployables:
            query = query.join(deployable, deployable.id == handle.deployable_id)
            query = query.where(deployable.name.in_(deployables))
        with db.reader() as session:
            return {uuid: place_of(json.loads(info)) for uuid, info in session.execute(query)}

    def check(self) -> None:
        assert self.wrong == []
        places = self.places(*self.cleaning)
        for uuid, (arq, state) in self.holders().items():
            if uuid in places and state in models.SERVING:
                place = places[uuid]
                assert self.dirty.get(place, arq) == arq, f"{place} is not clean"
                if state == models.BOUND:
                    self.dirty[place] = arq
        # What left its host takes with it what is on it, but for what must be erased.
        there = self.kept.union(places.values())
        self.dirty = {place: arq for place, arq in self.dirty.items() if place in there}

    def check_all(self) -> None:
        assert consistency.violations() == []
        assert uses.find() == []
        self.check_locks()
        arq = models.Arq
        bound = sa.select(arq.uuid).where(arq.state == models.BOUND)
        entry = models.HistoryEntry
        used = sa.select(entry).where(entry.kind == history.USED).order_by(entry.id)
        with db.reader() as session:
            has = set(session.scalars(bound))
            found = list(session.scalars(used))
        assert {each.arq_uuid for each in found if each.ended_ms is None} == has
        assert sum(usage.in_use for usage in history.sum_uses(None)) == len(has)
        last: dict[str | None, models.HistoryEntry] = {}
        for each in found:
            before = last.get(each.handle_uuid)
            assert before is None or (before.ended_ms or 2**62) <= each.started_ms
            last[each.handle_uuid] = each
        self.check_hours(found)

    def check_locks(self) -> None:
        """Each transaction that created requests has written the lock of its project.

        Without that, two nodes of a Galera cluster would each create the last one.
        """
        row = models.ProjectLock
        with db.reader() as session:
            found = session.execute(sa.select(row.project_id, row.locks))
            assert not self.created - Counter(dict(found.all()))

    def check_hours(self, uses: list[models.HistoryEntry]) -> None:
        """Usage in a period is what its entries add up to."""
        with db.reader() as session:
            now = session.scalar(sa.select(db.now_ms())) or 0
        first = min((each.started_ms for each in uses), default=now)
        moments = sorted(self.chance.randint(first, now) for _ in range(2))
        start, end = self.chance.choice([moments[0], None]), self.chance.choice([moments[1], now])
        had: Counter[tuple[str | None, str | None]] = Counter()
        for each in uses:
            until = now if each.ended_ms is None else each.ended_ms
            ms = min(until, end) - max(each.started_ms, start or 0)
            had[each.project_id, each.resource_class] += max(0, ms)
        said = {
            (usage.project_id, usage.resource_class): usage.hours
            for usage in history.sum_uses(None, start, end)
        }
        assert {key: hours for key, hours in said.items() if hours} == {
            key: hours for key, ms in had.items() if (hours := round(ms / HOUR_MS, 3))
        }
        self.most_hours = max([self.most_hours, *said.values()])

    def settle(self) -> None:
        """Everything works again, nobody asks for anything, and all instances end that must."""
        self.trouble, self.met = "", True
        self.host.go_on()
        self.report()
        draining.undrain("host-1", 1)
        with db.reader() as session:
            devices = list(session.scalars(sa.select(models.Device.uuid)))
            failed = sa.select(models.Arq.consumer_uuid).where(
                models.Arq.state == models.BIND_FAILED
            )
        for uuid in devices:
            flags.enable_device(uuid)
            flags.untaint_device(uuid)
        self.retry()
        with db.reader() as session:
            self.broken |= {instance for instance in session.scalars(failed) if instance}
        for instance in self.broken:
            release.delete_instance_arqs(self.users[PROJECTS[0]], instance)
            self.allocations.pop(instance, None)
        for _ in range(3):
            self.retry()
        self.report()


def steps(life: Life) -> dict[Callable[[], None], int]:
    """What may happen, and how often."""
    return {
        life.create: 12,
        life.bind: 20,
        life.work: 14,
        life.retry: 10,
        life.delete_instance: 12,
        life.unbind: 4,
        life.delete: 5,
        life.give_up: 4,
        life.disturb: 6,
        life.go_on: 5,
        life.die: 3,
        life.rush: 1,
        life.lose_patience: 4,
        life.close_device: 5,
        life.close_host: 1,
        life.open_host: 3,
        life.look: 5,
        life.pull: 8,
        life.let_time_pass: 6,
    }


def take(life: Life, step: Callable[[], None]) -> str:
    """Take a step, perhaps killed in the middle; what came of it."""
    number = life.chance.randint(1, 25) if life.chance.random() < 0.15 else 0
    try:
        with killing(list(db.engines()), number) if number else contextlib.nullcontext():
            step()
    except Killed:
        return "killed"
    except (errors.CyborgError, work.LeaseLost) as exc:
        return type(exc).__name__
    return "killed" if number else "done"


@pytest.mark.every_database
@pytest.mark.usefixtures("database")
def test_a_random_life(
    database_kind: str,
    conf: cfg.ConfigOpts,
    enforcer: Enforcer,
    placement: PlacementServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conf.set_override("allocation_audit_interval", 60, group="conductor")
    placement.make_provider(hosts.ROOT)
    life = Life(conf, enforcer, random.Random(SEED), monkeypatch)
    monkeypatch.setattr(rpc, "run_host_step", life.run_host_step)
    try:
        live(life, STEPS if database_kind == "sqlite" else STEPS_ON_SERVERS)
    finally:
        life.host.go_on()

    held = life.holders()
    assert {state for _, state in held.values()} <= {models.BOUND}
    places = life.places()
    assert life.dirty.keys() <= {places[handle] for handle in held}
    placement.sync()
    for instance, claims in life.allocations.items():
        for rp, amount in claims.items():
            placement.allocate(instance, rp, FPGA=amount)
    assert list(differences.find(conf, settle=0)) == []


def live(life: Life, count: int) -> None:
    """Take the steps, and check what must hold after each."""
    known = steps(life)
    came: Counter[str] = Counter()
    for number in range(count):
        (step,) = life.chance.choices([*known], [*known.values()])
        came[f"{step.__name__}: {take(life, step)}"] += 1
        life.check()
        if number % THOROUGH == 0:
            life.check_all()
    life.settle()
    life.check()
    life.check_all()
    LOG.info("What came of it: %s", sorted(came.items()))
    if count >= MANY:
        assert life.most_hours > 1
        for step in known:
            assert any(what.startswith(f"{step.__name__}: done") for what in came), step
