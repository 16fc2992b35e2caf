# SPDX-License-Identifier: Apache-2.0
"""What may happen to a host with FPGAs, and what must be true of it at any moment."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

import sqlalchemy as sa
from hypothesis import stateful
from hypothesis import strategies as st

from cyborg import db, work
from cyborg.arqs import service
from cyborg.audits import consistency
from cyborg.common import errors
from cyborg.db import models
from cyborg.drivers import base
from cyborg.function_pools import planner, pools
from cyborg.handles import giving_up, release
from cyborg.hosts import flags
from cyborg.inventory import report as inventory_report
from cyborg.programming import cancellation, operations, program
from cyborg.tests import boots, deserted_cards
from cyborg.tests.cloud import DEATHS, Killed
from cyborg.tests.fpgas import pool_spec
from cyborg.tests.programmed_cards import (
    FUNCTIONS,
    IMAGES,
    PROFILES,
    PROGRAMS,
    Fpga,
    Guest,
    Pass,
    function_of,
)
from cyborg.tests.programmed_host import Fpgas

LETTERS = st.sampled_from("abc")
#: Mostly the usual thing.
USUALLY = st.integers(0, 3).map(bool)
#: What the agent does with what it is asked.
AGENTS = st.sampled_from(
    ["works"] * 3 + ["fails at the start", "fails", "is away", "is not heard", "dies"]
)
INCIDENTS = ("loss", "child", "image", "status", "allocations", "misread", "glance")
#: A card, a device profile, and whether Placement is asked.
BOOTS = st.tuples(LETTERS, st.sampled_from(sorted(PROFILES)), st.booleans())


class Machine(stateful.RuleBasedStateMachine):
    """One history of the host."""

    def __init__(self, cloud: Fpgas) -> None:
        super().__init__()
        self.cloud = cloud
        cloud.renew()
        cloud.placement.after = self._look_at_offers
        #: What Placement has offered wrongly, if only for a moment.
        self.false_offers: list[str] = []
        self.cards = cloud.fpgas
        self.guests: list[Guest] = []
        #: Consumers whose instance is gone, and whose allocations Nova has yet to drop.
        self.leftovers: list[str] = []
        self.under_way: list[Pass] = []
        #: Cards whose device is disabled.
        self.disabled: set[str] = set()
        #: Since the last rest, which takes long.
        self.steps = 0

    @stateful.initialize(
        wiped=st.sets(LETTERS),
        programs=st.lists(st.sampled_from([*PROGRAMS, None]), min_size=1, max_size=3),
        boots=st.lists(BOOTS, min_size=1, max_size=4),
    )
    def begin(
        self,
        programs: list[str | None],
        boots: list[tuple[str, str, bool]],
        wiped: Collection[str] = (),
    ) -> None:
        """All is there, and some of it is programmed and in use."""
        for letter in wiped:
            # A layout is no image, and is not overwritten.
            self.cards[letter].wiped = self.cards[letter].mode != base.LAYOUT
        self.report(works=True)
        for letter, runs in zip(self.cards, programs, strict=False):
            if runs is not None:
                self.program(letter=letter, program=runs, works=True)
        # A layout is given out once its handles are reported.
        self.report(works=True)
        self.boot(boots=boots, works=True)

    # What happens on the host.

    @stateful.rule(late=st.booleans(), works=USUALLY)
    def report(self, *, works: bool, late: bool = False) -> None:
        """The agent looks at its hardware; what it has seen may arrive later."""
        self.under_way.append(self.cloud.begin_pass())
        if not late:
            self._deliver(self.under_way.pop())
            self._go_on(works=works)

    @stateful.precondition(lambda self: self.under_way)
    @stateful.rule(works=USUALLY)
    def deliver(self, *, works: bool) -> None:
        self._deliver(self.under_way.pop(0))
        self._go_on(works=works)

    def _deliver(self, seen: Pass) -> None:
        if inventory_report.apply_report(seen.report) == inventory_report.OLD:
            return
        for card in self.cards.values():
            if seen.losses[card.letter] == card.losses:
                card.looked_at = True
            if card.letter in seen.misread:
                # What it runs may be written again.
                card.before = card.before or card.image

    @stateful.rule(how=AGENTS, updates=USUALLY)
    def change_the_agent(self, how: str, *, updates: bool) -> None:
        """And whether Placement is updated at once while an operation waits for that."""
        self.cloud.agent, self.cloud.updates_placement = how, updates

    @stateful.rule(letter=LETTERS, loses=st.booleans(), early=st.booleans())
    def meet_a_step(self, letter: str, *, loses: bool, early: bool = False) -> None:
        """In the middle of the next step on the host the agent looks, and power may have failed.

        Early: while the image is looked for that is to be written.
        """

        def happen() -> None:
            if loses:
                self.cards[letter].lose()
            self._deliver(self.cloud.begin_pass())

        if early:
            self.cloud.while_asked = happen
        else:
            self.cloud.meanwhile = happen

    @stateful.rule(what=st.sampled_from(INCIDENTS), letter=LETTERS, works=USUALLY)
    def happen(self, what: str, letter: str, *, works: bool) -> None:
        """Something that nobody notices at once, or that is rare."""
        card = self.cards[letter]
        if what == "loss":
            # Guests are restarted with their host, which reports first.
            card.lose()
        elif what == "child":
            card.end_child()
        elif what == "image":
            self.cloud.newest["aes"] = IMAGES["aes-2"]
        elif what == "status":
            self._set_status(card)
        elif what == "misread":
            card.misread = True
        elif what == "glance":
            self.cloud.finds = not self.cloud.finds
        else:
            self.drop_allocations()
        self._go_on(works=works)

    # What administrators and Nova do.

    def _set_status(self, card: Fpga) -> None:
        """Disable a device, or enable it."""
        self.disabled ^= {card.letter}
        status = models.MAINTAINING if card.letter in self.disabled else models.ENABLED
        change = flags.enable_device if status == models.ENABLED else flags.disable_device
        change(self.cloud.row(card).device.uuid)

    @stateful.rule(
        letter=LETTERS,
        program=st.sampled_from(sorted(PROGRAMS)),
        late=st.booleans(),
        works=USUALLY,
    )
    def program(self, letter: str, program: str, *, works: bool, late: bool = False) -> None:
        """A report may be under way meanwhile."""
        seen = self.cloud.begin_pass() if late else None
        self._ask(letter, program)
        self._go_on(works=works)
        if seen is not None:
            self._deliver(seen)
            self.look()
            self._go_on(works=works)

    def _ask(self, letter: str, program: str) -> None:
        uuid = self.cloud.row(self.cards[letter]).uuid
        # A card with layouts takes no images.
        with contextlib.suppress(errors.Conflict, errors.Invalid):
            asked = operations.ask(uuid, PROGRAMS[program], "user admin")
            self.cloud.ledger.wanted.add(asked.uuid)

    @stateful.rule(number=st.integers(0, 9), works=USUALLY)
    def ask_for_another(self, number: int, *, works: bool) -> None:
        """Somebody asks for what the card of a guest does not run."""
        if self.guests:
            card = self.guests[number % len(self.guests)].card
            self._ask(card.letter, next(name for name in FUNCTIONS if name != card.loaded))
        self._go_on(works=works)

    @stateful.rule(letter=LETTERS, works=USUALLY)
    def cancel(self, letter: str, *, works: bool) -> None:
        """What was asked for is taken back, or it is too late for that."""
        uuid = self.cloud.row(self.cards[letter]).uuid
        with db.reader() as session:
            active = operations.active_on(session, uuid)
        if active is not None:
            with contextlib.suppress(errors.Conflict):
                cancellation.cancel(active.uuid, "user admin")
        self._go_on(works=works)

    @stateful.rule(boots=st.lists(BOOTS, min_size=1, max_size=3), works=USUALLY)
    def boot(self, boots: list[tuple[str, str, bool]], *, works: bool) -> None:
        for letter, profile, claims in boots:
            self._boot(letter, profile, claims=claims)
        self._go_on(works=works)

    def _boot(self, letter: str, profile: str, *, claims: bool) -> None:
        """Nova claims first, and does not go on without; other consumers do not ask Placement."""
        guest = Guest(models.new_uuid(), "", self.cards[letter], profile)
        if not claims or self.cloud.claim(guest):
            self._bind(guest)

    def _bind(self, guest: Guest) -> None:
        (arq,) = service.create(self.cloud.ctx, guest.profile)
        guest.arq = arq.uuid
        try:
            boots.bind(self.cloud.ctx, [arq.uuid], guest.uuid, device_rp_uuid=guest.card.provider)
        except errors.CyborgError:
            release.delete_arqs(self.cloud.ctx, [arq.uuid])
            self.cloud.placement.release(guest.uuid)
        else:
            self.guests.append(guest)

    @stateful.rule(
        letter=LETTERS,
        profile=st.sampled_from(sorted(PROFILES)),
        program=st.sampled_from([None, *PROGRAMS]),
        works=USUALLY,
    )
    def claim(self, letter: str, profile: str, program: str | None, *, works: bool) -> None:
        """Nova has a place for a guest, and is slow to go on; others ask for the card as well."""
        letter = self._idle(letter)
        guest = Guest(models.new_uuid(), "", self.cards[letter], profile)
        if self.cloud.claim(guest):
            self.cloud.claimed.append(guest)
        if program is not None:
            self._ask(letter, program)
        self._go_on(works=works)

    @stateful.rule(goes_on=USUALLY, works=USUALLY)
    def follow_claims(self, *, goes_on: bool, works: bool) -> None:
        """It goes on, or has given up."""
        while self.cloud.claimed:
            guest = self.cloud.claimed.pop(0)
            if goes_on:
                self._bind(guest)
            else:
                self.cloud.placement.release(guest.uuid)
        self._go_on(works=works)

    @stateful.rule(number=st.integers(0, 9), forced=st.booleans(), works=USUALLY)
    def delete(self, number: int, *, forced: bool, works: bool) -> None:
        """By Nova, or first by an administrator who knows that the instance is no more."""
        if not self.guests:
            # No precondition: what Hypothesis may choose must not hang on what became of a boot.
            return
        guest = self.guests.pop(number % len(self.guests))
        held = self.cloud.look().bound.get(guest.arq)
        if held is not None and guest.card.wiped and not forced:
            guest.card.left.add(held)
        if forced:
            self.cloud.prepared.discard(self.cloud.number_of(guest.arq))
            with contextlib.suppress(errors.Conflict):
                giving_up.release_arq(self.cloud.ctx, guest.arq, force=True)
        release.delete_instance_arqs(self.cloud.ctx, guest.uuid)
        self.leftovers.append(guest.uuid)
        self._go_on(works=works)

    def drop_allocations(self) -> None:
        """Nova gives back in Placement what its deleted instances had."""
        for consumer in self.leftovers:
            self.cloud.placement.release(consumer)
        self.leftovers.clear()

    def _give_up_claims(self) -> None:
        """Who has claimed some of a card that waits to be overwritten does not ask for it."""
        for guest in [each for each in self.cloud.claimed if each.card.left]:
            self.cloud.claimed.remove(guest)
            self.cloud.placement.release(guest.uuid)

    @stateful.rule(
        function=st.sampled_from(FUNCTIONS),
        free=st.integers(0, 4),
        devices=st.integers(1, 3),
        image=st.booleans(),
        works=USUALLY,
    )
    def want_slots(
        self, function: str, free: int, devices: int, *, works: bool, image: bool = False
    ) -> None:
        """The pool of the function is made, changed, or deleted if nothing is to be free."""
        known = [pool.row for pool in pools.list_pools() if pool.row.name == function]
        spec = pool_spec(
            name=function,
            function_id=function,
            image_uuid=self.cloud.newest[function] if image else None,
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

    @stateful.rule(how=st.sampled_from(DEATHS), count=st.integers(0, 8))
    def work_and_be_killed(self, how: str, count: int) -> None:
        with self.cloud.dying(how, count):
            self._go_on(works=True)

    @stateful.rule(count=st.integers(0, 3))
    def delay_a_request(self, count: int) -> None:
        """One of the next changes of a provider is given up, and Placement makes it later."""
        self.cloud.placement.delay_after = count

    @stateful.rule(works=USUALLY)
    def carry_out(self, *, works: bool) -> None:
        """What Placement was asked for long ago."""
        self.cloud.placement.carry_out()
        self._go_on(works=works)

    @stateful.rule(
        letter=LETTERS,
        program=st.sampled_from(sorted(PROGRAMS)),
        first=st.sampled_from(["kills", "is not heard", "dies"]),
        then=st.sampled_from(["works", "fails at the start", "fails at the start", "fails"]),
    )
    def take_over(self, letter: str, program: str, first: str, then: str) -> None:
        """One conductor begins to write, and another one takes over; a report is under way."""
        letter = self._idle(letter)
        agent, seen = self.cloud.agent, self.cloud.begin_pass()
        self.cloud.agent = first
        self._ask(letter, program)
        with contextlib.suppress(Killed):
            self._go_on(works=True)
        self.cloud.agent = then
        self.let_time_pass()
        self._deliver(seen)
        self.cloud.agent = agent

    def _idle(self, letter: str) -> str:
        """That card, or another one of which something is on offer, if any is."""
        idle = [card.letter for card in self.cards.values() if self.cloud.free(card)]
        return letter if letter in idle else next(iter(idle), letter)

    @stateful.rule()
    def let_time_pass(self) -> None:
        self.cloud.let_time_pass()
        planner.want_due(self.cloud.conf)
        self._go_on(works=True)

    @stateful.precondition(lambda self: self.steps > 4)
    @stateful.rule()
    def come_to_rest(self) -> None:
        """All is well and nothing changes any more."""
        self.steps = 0
        self.cloud.live()
        self.cloud.finds = True
        for card in self.cards.values():
            card.end_child()
            card.misread = False
        busy, rounds = True, 0
        while busy:
            before = self.cloud.pieces_done
            self.report(works=False)
            self.drop_allocations()
            self._give_up_claims()
            self.cloud.let_time_pass()
            self._go_on(works=True)
            # The agent looks at once at what it has written.
            self.report(works=True)
            busy, rounds = self.cloud.pieces_done > before, rounds + 1
            assert rounds < 9
        assert consistency.violations() == []
        self.cloud.placement.carry_out()
        self.cloud.placement.assert_right("host-1")
        with db.reader() as session:
            left = {row.kind: row.last_error for row in session.scalars(sa.select(models.Work))}
            # What guests have left on a card is overwritten when nobody has any of it.
            assert left.keys() <= ({work.HOST_STEP} if self._waiting() else set())
            active = sa.select(models.Operation).where(
                models.Operation.active.is_not(None)
            )
            assert session.scalars(active).all() == []
        ended = {each.uuid: each.error for each in operations.list_operations()}
        ends = {ended[uuid] for uuid in self.cloud.ledger.wanted}
        assert "Nobody waits for it any more." not in ends
        self._assert_records()

    def teardown(self) -> None:
        self.come_to_rest()

    def _assert_records(self) -> None:
        for card in self.cards.values():
            row = self.cloud.row(card)
            assert row.is_settled
            assert (row.function_id or "") == card.loaded
            offered = card.letter not in self.disabled and (card.loaded or card.mode == "dynamic")
            free = card.size_with(card.loaded) - len(card.left) if offered else 0
            assert self.cloud.free(card) == free

    def _waiting(self) -> bool:
        """Whether there are cards that guests have left and others still have."""
        return any(each.card.left for each in self.guests)

    # What must be true at any moment.

    @stateful.invariant()
    def count(self) -> None:
        self.steps += 1

    @stateful.invariant()
    def look(self) -> None:
        seen = self.cloud.look()
        for guest in self.guests:
            if guest.arq in seen.bound:
                self._assert_served(guest, seen.bound[guest.arq])
        is_current = not seen.placement_lags
        for card in self.cards.values():
            card.lost = card.lost and not (card.looked_at and is_current)
            if not card.lost and card.name not in seen.unsettled:
                card.before = ""
            # Of what is written nothing is believed but what its host says in the end.
            if not card.lost and card.name not in seen.unsettled and card.name in seen.records:
                assert seen.records[card.name].holds(card.image)
        shows = self.cloud.placement.shows("FPGA")
        offers = {
            card.name: (card, shows.get(card.provider, (0, frozenset()))[0])
            for card in self.cards.values()
        }
        for name, (_, free) in offers.items():
            assert not free or not is_current or name not in seen.unsettled
        if is_current and not any(card.mode == base.LAYOUT for card in self.cards.values()):
            deserted_cards.assert_offers(self.cloud.ledger, seen.held, offers)
        self._look_at_offers()
        assert self.false_offers == []

    def _look_at_offers(self) -> None:
        """Also whenever Placement changes: nothing is on offer with a function that is not run."""
        shows = self.cloud.placement.shows("FPGA")
        for card in self.cards.values():
            free, traits = shows.get(card.provider, (0, frozenset()))
            if not free or card.lost:
                continue
            expected = {program.function_trait("FAKE", card.loaded)} if card.loaded else set()
            # It may lack one until a report shows what a failed write has left behind.
            if not {trait for trait in traits if "FUNCTION_ID" in trait} <= expected:
                self.false_offers.append(f"{card.name} with {traits}, which runs {card.loaded!r}")
            if not card.loaded and card.mode != "dynamic":
                self.false_offers.append(f"{card.name}, which runs nothing")
            elif free > card.size_with(card.loaded):
                self.false_offers.append(f"{free} of {card.name} with {card.loaded}")

    def _assert_served(self, guest: Guest, number: int) -> None:
        """It has what it asked for and nothing else, but for what the power failure took."""
        card = guest.card
        assert number in self.cloud.prepared or not card.stepped
        if guest.got is None:
            assert number not in card.left
            guest.got = card.before if card.lost else card.image
            assert guest.is_served_by(guest.got)
            assert number in card.numbers_with(function_of(guest.got))
        elif card.loaded and card.loaded == function_of(guest.got) and guest.image is None:
            # Another image of it: nobody knew which one it was.
            guest.got = card.image
        elif card.image != guest.got:
            assert not card.image
            # It is not settled until it is back, if somebody has asked for it.
            row = self.cloud.row(card)
            asked = guest.function or guest.image
            assert card.lost or not row.is_settled or not (asked or row.function_id)
