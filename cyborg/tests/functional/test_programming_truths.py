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

import hypothesis
import sqlalchemy as sa
from hypothesis import stateful
from hypothesis import strategies as st

from cyborg import db, errors
from cyborg.arqs import binding, invariants, release, service
from cyborg.db import models, program_models
from cyborg.inventory import programs
from cyborg.inventory import report as inventory_report
from cyborg.programming import operations, pools, reconciler, wanted
from cyborg.tests import hosts
from cyborg.tests.cloud import Killed
from cyborg.tests.programmed_host import IMAGES, PROFILES, Fpga, Fpgas, Guest

FUNCTIONS = st.sampled_from(sorted(IMAGES))
#: Mostly the usual thing.
USUALLY = st.integers(0, 3).map(bool)


class Machine(stateful.RuleBasedStateMachine):
    """One history of the host."""

    def __init__(self, cloud: Fpgas) -> None:
        super().__init__()
        self.cloud = cloud
        cloud.renew()
        self.cards = cloud.fpgas
        self.guests: list[Guest] = []
        self.leftovers: list[str] = []
        #: Since the last rest, which takes long.
        self.steps = 0
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

    @stateful.rule(
        function=FUNCTIONS, free=st.integers(0, 4), devices=st.integers(1, 3), works=USUALLY
    )
    def want_slots(self, function: str, free: int, devices: int, *, works: bool) -> None:
        """The pool of the function is made, changed, or deleted where nothing is to be free."""
        known = [pool.row for pool in pools.list_pools() if pool.row.name == function]
        spec = pools.Spec(
            name=function,
            description=None,
            function_id=function,
            image_uuid=None,
            hosts=None,
            traits=(),
            free=free,
            max_devices=devices,
        )
        if not known:
            pools.create_pool(spec)
        elif free:
            pools.replace_pool(known[0].uuid, spec)
        else:
            pools.delete_pool(known[0].uuid)
        self._go_on(works=works)

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
        reconciler.look(self.cloud.conf)
        self._go_on(works=True)

    @stateful.precondition(lambda self: self.steps > 4)
    @stateful.rule()
    def come_to_rest(self) -> None:
        """All is well and nothing changes any more."""
        self.steps = 0
        self.cloud.live()
        busy, rounds = True, 0
        while busy:
            before = self.cloud.pieces_done
            self.report(works=False)
            self.drop_allocations()
            self.cloud.let_time_pass()
            self._go_on(works=True)
            busy, rounds = self.cloud.pieces_done > before, rounds + 1
            assert rounds < 9
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
        self.steps += 1
        seen = self.cloud.look()
        for guest in self.guests:
            bound = guest.arq in seen.bound
            if bound and guest.function and not guest.card.lost:
                self._assert_served(guest)
        told = not seen.untold
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
