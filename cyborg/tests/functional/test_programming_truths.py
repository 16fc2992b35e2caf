# SPDX-License-Identifier: Apache-2.0
"""No guest ever sees its function change, and no provider offers what it cannot give.

Boots, deletions, programs and losses of programs come in any order that Hypothesis thinks of, while
conductors are killed, agents fail or fall silent and Placement's answers are lost. What is asked of
the hardware is looked at in the moment when it is asked.

``CYBORG_TEST_EXAMPLES`` runs that many histories, other ones each time, instead of a few fixed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import hypothesis
import pytest
import sqlalchemy as sa
from hypothesis import stateful
from hypothesis import strategies as st
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import context, db, errors, glance, profiles, rpc, work
from cyborg.arqs import binding, invariants, release, service
from cyborg.db import models, program_models
from cyborg.drivers import base
from cyborg.inventory import programs
from cyborg.inventory import report as inventory_report
from cyborg.inventory.changes import provider_uuid
from cyborg.programming import operations, steps, wanted
from cyborg.tests import hosts
from cyborg.tests.cloud import Cloud, Killed
from cyborg.tests.placement_server import PlacementServer

#: Functions, each with its image.
IMAGES = {"aes": models.new_uuid(), "zip": models.new_uuid()}
FUNCTIONS = st.sampled_from(sorted(IMAGES))
PROFILES = {"any": {}, **{name: {"accel:function_id": name} for name in IMAGES}}
#: Mostly the usual thing.
USUALLY = st.integers(0, 3).map(bool)


@dataclass(slots=True)
class Fpga:
    """A card as it is, whoever knows."""

    letter: str
    mode: str
    handles: int
    #: What the hardware runs.
    loaded: str = ""
    #: What it ran when its program was lost.
    before: str = ""
    #: It was lost, and Placement has not been told: nobody has looked, or nobody has said so.
    lost: bool = False
    looked_at: bool = True

    @property
    def name(self) -> str:
        return f"host-1_{self.letter}"

    @property
    def provider(self) -> str:
        return provider_uuid(self.name)

    def device(self) -> base.Device:
        """The card as its driver finds it."""
        first = ord(self.letter) * 4
        part = hosts.deployable(
            self.name,
            range(first, first + self.handles),
            program_mode=self.mode,
            function=self.loaded,
            function_vendor="FAKE",
        )
        return hosts.device(self.letter, part)


@dataclass(slots=True)
class Guest:
    """An instance as Nova sees it, and what it was promised."""

    uuid: str
    arq: str
    card: Fpga
    function: str | None


class Fpgas(Cloud):
    """A host with FPGAs. Its agent does what it is told, and looks at what it is told."""

    def renew(self) -> None:
        super().renew()
        self.fpgas = {
            "a": Fpga("a", "single-program", 2),
            "b": Fpga("b", "dynamic", 1),
            "c": Fpga("c", "dynamic", 2),
        }
        for name, keys in PROFILES.items():
            groups = [{"resources:FPGA": "1"} | keys]
            profiles.create_profile(name=name, groups=groups, description=None, uuid=None)
        #: How often hardware was written.
        self.writes = 0

    def run_program(
        self, conf: cfg.ConfigOpts, host: str, step: rpc.ProgramStep, timeout: float
    ) -> rpc.ProgramAnswer:
        """The agent's side."""
        (card,) = (card for card in self.fpgas.values() if card.name == step.deployable)
        function = step.function_id or ""
        if self.agent == "is away":
            raise rpc.HostUnreachable("the agent does not answer")
        if self.agent == "fails at the start":
            raise rpc.ProgramFailed("it cannot be read", written=False)
        self._assert_free(card, function)
        card.loaded, card.lost = "", False
        self.writes += 1
        if self.agent == "fails":
            raise rpc.ProgramFailed("it cannot be written", written=True)
        if self.agent == "kills":
            raise Killed
        card.loaded, card.before = function, ""
        if self.agent == "is not heard":
            raise rpc.HostUnreachable("the agent's answer is lost")
        return rpc.ProgramAnswer(function=function, verified_by="a look", report_counter=0)

    def _assert_free(self, card: Fpga, function: str) -> None:
        """Nobody has the card that is about to be written, or can be given it."""
        handle, arq = models.AttachHandle, models.Arq
        query = (
            sa.select(arq)
            .join(handle, handle.id == arq.attach_handle_id)
            .join(models.Deployable, models.Deployable.id == handle.deployable_id)
            .where(models.Deployable.name == card.name, arq.state == models.BOUND)
        )
        with db.reader() as session:
            guests = session.scalars(query).all()
        # What was lost may be put back under them.
        if function != (card.loaded or card.before):
            assert [guest.uuid for guest in guests] == []
        assert self.free(card) == 0

    def free(self, card: Fpga) -> int:
        """How many of the card's handles Placement reserves for nobody."""
        return self.placement.shows("FPGA").get(card.provider, (0, frozenset()))[0]

    def find_image(self, conf: cfg.ConfigOpts, **what: str | None) -> glance.Image:
        """Glance's side."""
        by_uuid = {uuid: function for function, uuid in IMAGES.items()}
        function = what["function_id"] or by_uuid[what["uuid"] or ""]
        return glance.Image(
            uuid=IMAGES[function],
            name=function,
            size=1,
            hash_algo="sha512",
            hash_value="0",
            checksum=None,
            status="active",
            properties={glance.FUNCTION_ID: function},
        )


class Machine(stateful.RuleBasedStateMachine):
    """One history of the host."""

    def __init__(self, cloud: Fpgas) -> None:
        super().__init__()
        self.cloud = cloud
        cloud.renew()
        self.cards = cloud.fpgas
        self.guests: list[Guest] = []
        self.leftovers: list[str] = []
        #: Those that have had their ARQ Bound.
        self.served: set[str] = set()

    @stateful.initialize(functions=st.lists(FUNCTIONS, max_size=3))
    def begin(self, functions: list[str]) -> None:
        """All is there, and some of it is programmed."""
        self.report(works=True)
        for letter, function in zip(self.cards, functions, strict=False):
            self.program(letter=letter, function=function, works=True)

    # What happens on the host.

    @stateful.rule(works=USUALLY)
    def report(self, *, works: bool) -> None:
        found = [card.device() for card in self.cards.values()]
        inventory_report.apply_report(hosts.report(*found))
        for card in self.cards.values():
            card.looked_at = True
        self._go_on(works=works)

    @stateful.rule(
        how=st.sampled_from(["works", "fails at the start", "fails", "is away", "is not heard"])
    )
    def change_the_agent(self, how: str) -> None:
        self.cloud.agent = how

    @stateful.rule(letter=st.sampled_from("abc"))
    def lose(self, letter: str) -> None:
        """The power fails. Guests are restarted with their host, which reports first."""
        card = self.cards[letter]
        card.before = card.loaded or card.before
        card.loaded, card.lost, card.looked_at = "", True, False

    # What administrators and Nova do.

    @stateful.rule(letter=st.sampled_from("abc"), function=FUNCTIONS, works=USUALLY)
    def program(self, letter: str, function: str, *, works: bool) -> None:
        with db.reader() as session:
            name = self.cards[letter].name
            query = sa.select(models.Deployable.uuid).where(models.Deployable.name == name)
            uuid = session.scalar(query)
        with contextlib.suppress(errors.Conflict):
            operations.ask(uuid or "", wanted.Wanted(function_id=function), "user admin")
        self._go_on(works=works)

    @stateful.rule(
        letter=st.sampled_from("abc"),
        profile=st.sampled_from(sorted(PROFILES)),
        claims=USUALLY,
        works=USUALLY,
    )
    def boot(self, letter: str, profile: str, *, claims: bool, works: bool) -> None:
        """Nova claims first, and does not go on without; other consumers do not ask Placement."""
        card = self.cards[letter]
        consumer = models.new_uuid()
        if claims:
            if card.provider not in self.cloud.placement.candidates("FPGA"):
                return
            self.cloud.placement.allocate(consumer, card.provider, FPGA=1)
        (arq,) = service.create(self.cloud.ctx, profile)
        guest = Guest(consumer, arq.uuid, card, PROFILES[profile].get("accel:function_id"))
        target = binding.BindTarget(
            hostname=hosts.ROOT, device_rp_uuid=card.provider, instance_uuid=consumer
        )
        try:
            binding.request_changes(self.cloud.ctx, {arq.uuid: target}, [])
        except errors.CyborgError:
            release.delete_arqs(self.cloud.ctx, [arq.uuid])
            self.cloud.placement.release(consumer)
        else:
            self.guests.append(guest)
        self._go_on(works=works)

    @stateful.precondition(lambda self: self.guests)
    @stateful.rule(number=st.integers(0, 9), works=USUALLY)
    def delete(self, number: int, *, works: bool) -> None:
        guest = self.guests.pop(number % len(self.guests))
        release.delete_instance_arqs(self.cloud.ctx, guest.uuid)
        self.leftovers.append(guest.uuid)
        self._go_on(works=works)

    @stateful.rule()
    def drop_allocations(self) -> None:
        """Nova gives back in Placement what its deleted instances had."""
        for consumer in self.leftovers:
            self.cloud.placement.release(consumer)
        self.leftovers.clear()

    # What conductors do.

    def _go_on(self, *, works: bool) -> None:
        while works and self.cloud.do_one():
            self.look()

    @stateful.rule(
        how=st.sampled_from(["before a commit", "after a commit", "in a host step", "no answer"]),
        count=st.integers(0, 8),
    )
    def work_and_be_killed(self, how: str, count: int) -> None:
        """Or Placement's answer is lost, which looks the same from there."""
        agent = self.cloud.agent
        if how == "in a host step":
            self.cloud.agent = "kills"
        elif how == "no answer":
            self.cloud.placement.lose_answer_after = count
        else:
            self.cloud.commits_left, self.cloud.kill_before = count, how.startswith("before")
        with contextlib.suppress(Killed):
            self._go_on(works=True)
        self.cloud.live()
        self.cloud.agent = agent

    @stateful.rule()
    def let_time_pass(self) -> None:
        self.cloud.let_time_pass()
        self._go_on(works=True)

    @stateful.rule()
    def come_to_rest(self) -> None:
        """All is well and nothing changes any more."""
        self.cloud.live()
        for _ in range(4):
            self.report(works=False)
            self.drop_allocations()
            self.cloud.let_time_pass()
            self._go_on(works=True)
        assert invariants.violations() == []
        self.cloud.placement.assert_right("host-1")
        with db.reader() as session:
            assert session.scalars(sa.select(models.Work)).all() == []
            active = sa.select(program_models.Operation).where(
                program_models.Operation.active.is_not(None)
            )
            assert session.scalars(active).all() == []
        self._assert_records()

    def teardown(self) -> None:
        self.come_to_rest()

    def _assert_records(self) -> None:
        for card in self.cards.values():
            row = self._row(card)
            assert not row.in_doubt
            assert (row.function_id or "") == card.loaded
            assert row.bitstream_id in {None, IMAGES.get(card.loaded)}
            programmed = card.loaded or card.mode == "dynamic"
            assert self.cloud.free(card) == (card.handles if programmed else 0)

    def _row(self, card: Fpga) -> models.Deployable:
        query = sa.select(models.Deployable).where(models.Deployable.name == card.name)
        with db.reader() as session:
            return session.scalars(query).one()

    # What must be true at any moment.

    @stateful.invariant()
    def look(self) -> None:
        arqs = {arq.uuid: arq for arq in service.list_arqs(self.cloud.ctx)}
        for guest in self.guests:
            bound = guest.arq in arqs and arqs[guest.arq].state == models.BOUND
            if bound and guest.function and not guest.card.lost:
                self._assert_served(guest)
        told = not work.is_wanted(work.PLACEMENT, "host-1")
        for card in self.cards.values():
            card.lost = card.lost and not (card.looked_at and told)
        shows = self.cloud.placement.shows("FPGA")
        for card in self.cards.values():
            free, traits = shows.get(card.provider, (0, frozenset()))
            if free and not card.lost:
                expected = {programs.function_trait("FAKE", card.loaded)} if card.loaded else set()
                assert {trait for trait in traits if "FUNCTION_ID" in trait} == expected
                assert card.loaded or card.mode == "dynamic"

    def _assert_served(self, guest: Guest) -> None:
        """What the power failure took is being put back; else the function is there."""
        if guest.card.loaded == guest.function:
            self.served.add(guest.uuid)
            return
        # It was lost under the guest: it is in doubt until it is back, or could not be put back.
        assert guest.uuid in self.served
        assert self._row(guest.card).in_doubt or self._row(guest.card).function_id is None


@pytest.fixture
def fpgas(
    conf: cfg.ConfigOpts,
    database: sa.Engine,
    ctx: context.RequestContext,
    placement: PlacementServer,
    tmp_path: os.PathLike[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Fpgas]:
    """The host; ``renew`` begins a history of it."""
    conf.set_override("auth_type", "none", group="glance")
    # Who would tell Placement meanwhile is the same thread.
    monkeypatch.setattr(steps, "PLACEMENT_WAIT", 0.0)
    found = Fpgas(conf, ctx, placement, tmp_path)  # type: ignore[arg-type]
    monkeypatch.setattr(rpc, "run_program", found.run_program)
    monkeypatch.setattr(glance, "find_image", found.find_image)
    sa.event.listen(database, "commit", found.before_commit)
    sa.event.listen(orm.Session, "after_commit", found.after_commit)
    yield found
    sa.event.remove(orm.Session, "after_commit", found.after_commit)
    sa.event.remove(database, "commit", found.before_commit)


def test_in_any_order(fpgas: Fpgas) -> None:
    class History(Machine):
        def __init__(self) -> None:
            super().__init__(fpgas)

    examples = os.environ.get("CYBORG_TEST_EXAMPLES")
    stateful.run_state_machine_as_test(
        History,
        settings=hypothesis.settings(
            max_examples=int(examples or 15),
            stateful_step_count=30,
            derandomize=examples is None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )
