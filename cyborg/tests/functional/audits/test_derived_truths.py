# SPDX-License-Identifier: Apache-2.0
"""What is derived must stay true: handles in use, what is reserved, the digest, Placement's tree.

A host's hardware comes and goes while instances boot and die on it, messages are lost and
conductors are killed, in any order that Hypothesis thinks of. Whenever all that comes to rest,
Placement says what the database says, and the database what the host has.

``CYBORG_TEST_EXAMPLES`` runs that many histories, other ones each time, instead of a few fixed.
"""

from __future__ import annotations

import json
import os

import hypothesis
import sqlalchemy as sa
from hypothesis import stateful
from hypothesis import strategies as st
from sqlalchemy import orm

from cyborg import db, rpc
from cyborg.arqs import bind_requests, binding, service
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import release
from cyborg.hosts import flags
from cyborg.inventory import report as inventory_report
from cyborg.tests import hosts
from cyborg.tests.cloud import ABILITIES, CLASSES, DEATHS, HANDLES, Card, Cloud, Instance

LETTERS = st.sampled_from(sorted(ABILITIES))
#: Mostly the usual thing.
USUALLY = st.integers(0, 3).map(bool)


class Machine(stateful.RuleBasedStateMachine):
    """One history of the host."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__()
        self.cloud = cloud
        cloud.renew()
        self.cards = cloud.cards
        self.instances: list[Instance] = []
        #: Consumers whose instance is gone, and whose allocations Nova has yet to drop.
        self.leftovers: list[str] = []
        #: By handle the ARQ that had it last, of the card that must be erased between two.
        self.users: dict[int, str] = {}
        self.sent: list[rpc.HostReport] = []
        #: Since the last rest, which takes long.
        self.steps = 0

    # What happens on the host.

    @stateful.initialize(letters=st.lists(LETTERS, max_size=3))
    def begin(self, letters: list[str]) -> None:
        """All cards are there, each has an instance, and some have more."""
        for card in self.cards.values():
            card.plugged = True
        self.report("now", works=True)
        for letter in [*self.cards, *letters]:
            if self.cards[letter] in self._offering():
                self._boot(self.cards[letter], claims=True)
        self._go_on(works=True)

    @stateful.rule(
        letter=LETTERS,
        what=st.sampled_from(["plug", "handle", "class", "health", "nest"]),
        number=st.integers(0, HANDLES - 1),
        reports=USUALLY,
        works=USUALLY,
    )
    def change(self, letter: str, what: str, number: int, *, reports: bool, works: bool) -> None:
        """The card comes or goes, is ill or well, another kind of thing, or divided or whole."""
        card = self.cards[letter]
        if what == "plug":
            card.plugged = not card.plugged
        elif what == "handle":
            card.handles ^= {number}
        elif what == "health":
            card.unhealthy = None if card.unhealthy else "it is too hot"
        elif what == "nest":
            card.nested = not card.nested
        else:
            card.resource_class = CLASSES[card.resource_class == CLASSES[0]]
        if reports:
            self.report("now", works=works)

    @stateful.rule(what=st.sampled_from(["now", "failed", "old"]), works=USUALLY)
    def report(self, what: str, *, works: bool) -> None:
        """The agent reports, its driver fails, or an old message arrives once more."""
        if what == "old":
            report = self.sent[len(self.sent) // 2]
        elif what == "failed":
            report = hosts.report(by_driver={}, errors={hosts.DRIVER: "it raised"})
        else:
            found = [card.device() for card in self.cards.values() if card.plugged]
            report = hosts.report(*found)
        self.sent.append(report)
        inventory_report.apply_report(report)
        self._go_on(works=works)

    @stateful.rule(how=st.sampled_from(["works", "fails", "is away"]))
    def change_the_agent(self, how: str) -> None:
        self.cloud.agent = how

    # What administrators and Nova do.

    @stateful.rule(
        letter=LETTERS, status=st.sampled_from([models.MAINTAINING, models.ENABLED]), works=USUALLY
    )
    def set_status(self, letter: str, status: str, *, works: bool) -> None:
        query = sa.select(models.Device.uuid).join(models.Deployable)
        with db.reader() as session:
            named = query.where(models.Deployable.name == self.cards[letter].name)
            uuid = session.scalar(named)
        if uuid is not None:
            change = flags.enable_device if status == models.ENABLED else flags.disable_device
            change(uuid)
        self._go_on(works=works)

    @stateful.rule(number=st.integers(0, len(ABILITIES) - 1), claims=USUALLY, works=USUALLY)
    def boot(self, number: int, *, claims: bool, works: bool) -> None:
        """Nova claims first, and does not go on without; other consumers do not ask Placement."""
        cards = self._offering() if claims else list(self.cards.values())
        if cards:
            self._boot(cards[number % len(cards)], claims=claims)
        self._go_on(works=works)

    def _boot(self, card: Card, *, claims: bool) -> None:
        consumer = models.new_uuid()
        resource_class = self._class_of(card) or card.resource_class
        if claims:
            self.cloud.placement.allocate(consumer, card.provider, **{resource_class: 1})
        (arq,) = service.create(self.cloud.ctx, resource_class)
        instance = Instance(consumer, arq.uuid, card)
        if self._bind(instance):
            self.instances.append(instance)
        else:
            release.delete_arqs(self.cloud.ctx, [arq.uuid])
            self._drop(consumer)

    def _offering(self) -> list[Card]:
        """The cards that the scheduler would choose."""
        found = {
            uuid
            for resource_class in CLASSES
            for uuid in self.cloud.placement.candidates(resource_class)
        }
        return [card for card in self.cards.values() if card.provider in found]

    def _class_of(self, card: Card) -> str | None:
        attribute = models.Attribute
        query = sa.select(attribute.value).join(models.Deployable)
        with db.reader() as session:
            named = query.where(attribute.key == "rc", models.Deployable.name == card.name)
            return session.scalar(named)

    def _bind(self, instance: Instance) -> bool:
        target = bind_requests.BindTarget(
            hostname=hosts.ROOT,
            device_rp_uuid=instance.card.provider,
            consumer_uuid=instance.uuid,
        )
        try:
            binding.request_changes(self.cloud.ctx, {instance.arq: target}, [])
        except errors.CyborgError:
            return False
        return True

    def _drop(self, consumer: str) -> None:
        self.cloud.placement.release(consumer)

    @stateful.precondition(lambda self: self.instances)
    @stateful.rule(number=st.integers(0, 9), drops_first=st.booleans(), works=USUALLY)
    def delete(self, number: int, *, drops_first: bool, works: bool) -> None:
        instance = self.instances.pop(number % len(self.instances))
        if drops_first:
            self._drop(instance.uuid)
        else:
            self.leftovers.append(instance.uuid)
        release.delete_instance_arqs(self.cloud.ctx, instance.uuid)
        self._go_on(works=works)

    @stateful.precondition(lambda self: self.instances)
    @stateful.rule(number=st.integers(0, 9), works_between=st.booleans(), works=USUALLY)
    def unbind_and_bind_again(self, number: int, *, works_between: bool, works: bool) -> None:
        instance = self.instances[number % len(self.instances)]
        binding.request_changes(self.cloud.ctx, {}, [instance.arq])
        self._go_on(works=works_between)
        if not self._bind(instance):
            self.instances.remove(instance)
            self.leftovers.append(instance.uuid)
            release.delete_arqs(self.cloud.ctx, [instance.arq])
        self._go_on(works=works)

    # What conductors do.

    def _go_on(self, *, works: bool) -> None:
        """Do all that is due, or leave it for later."""
        while works and self.cloud.do_one():
            pass

    @stateful.rule(how=st.sampled_from(DEATHS), count=st.integers(0, 8))
    def work_and_be_killed(self, how: str, count: int) -> None:
        with self.cloud.dying(how, count):
            self._go_on(works=True)

    @stateful.rule()
    def let_time_pass(self) -> None:
        self.cloud.let_time_pass()
        self._go_on(works=True)

    @stateful.invariant()
    def count(self) -> None:
        self.steps += 1

    @stateful.invariant()
    def give_nothing_that_is_not_erased(self) -> None:
        handle, arq = models.AttachHandle, models.Arq
        query = sa.select(handle.attach_info, arq.uuid, arq.state).join(arq.attach_handle)
        of_card = query.join(models.Deployable, models.Deployable.id == handle.deployable_id)
        with db.reader() as session:
            held = session.execute(of_card.where(models.Deployable.clean_erases)).all()
        for info, uuid, state in held:
            number = int(json.loads(info)["device"], 16)
            if self.users.get(number, uuid) != uuid:
                assert number in self.cloud.cleaned
            self.users[number] = uuid
            if state in models.SERVING:
                self.cloud.cleaned.discard(number)

    @stateful.precondition(lambda self: self.steps > 4)
    @stateful.rule(heals=st.booleans())
    def come_to_rest(self, *, heals: bool) -> None:
        """Nothing changes any more. Then the agent is well again, or what it does is as it was."""
        self.steps = 0
        if heals:
            self.cloud.live()
            # What is dirty and gone stays held until it can be erased.
            self.cards["c"].plugged, self.cards["c"].handles = True, set(range(HANDLES))
        busy = True
        for _ in range(6):
            if not busy:
                break
            self.cloud.let_time_pass()
            self.report("now", works=False)
            before = self.cloud.pieces_done
            self._nova_cleans_up()
            self._go_on(works=True)
            busy = self.cloud.pieces_done > before
        if heals:
            self._assert_all_is_done()
        self._assert_rows()
        self.cloud.placement.assert_right("host-1")
        self._assert_offers()

    def teardown(self) -> None:
        self.come_to_rest(heals=True)

    def _nova_cleans_up(self) -> None:
        """Instances that got no accelerator fail, and allocations of the deleted ones go."""
        for arq in service.list_arqs(self.cloud.ctx):
            if arq.state == models.BIND_FAILED and arq.consumer_uuid:
                self.leftovers.append(arq.consumer_uuid)
                release.delete_instance_arqs(self.cloud.ctx, arq.consumer_uuid)
        self.instances = [one for one in self.instances if one.uuid not in self.leftovers]
        for consumer in self.leftovers:
            self._drop(consumer)
        self.leftovers.clear()

    # What must be true at rest.

    def _assert_all_is_done(self) -> None:
        with db.reader() as session:
            rows = session.scalars(sa.select(models.Work)).all()
            arqs = session.scalars(sa.select(models.Arq)).all()
        assert {f"{row.kind}/{row.key}": row.last_error for row in rows} == {}
        assert {arq.uuid for arq in arqs} == {instance.arq for instance in self.instances}
        assert {arq.state for arq in arqs} <= {models.BOUND}
        assert all(arq.attach_handle_id for arq in arqs)

    def _deployables(self) -> list[models.Deployable]:
        deployable = models.Deployable
        query = sa.select(deployable).options(
            orm.joinedload(deployable.device),
            orm.selectinload(deployable.attributes),
            orm.selectinload(deployable.attach_handles).joinedload(models.AttachHandle.arq),
        )
        with db.reader() as session:
            return list(session.scalars(query))

    def _assert_rows(self) -> None:
        """Rows are what the host has, and what it no longer has but a guest holds."""
        rows = {row.name: row for row in self._deployables()}
        for card in self.cards.values():
            row, above = rows.pop(card.name, None), rows.pop(card.whole, None)
            assert (row.parent_id if row else None) == (above.id if above else None)
            if row is None:
                assert not card.plugged
                continue
            held = {handle for handle in row.attach_handles if handle.arq is not None}
            gone = {handle for handle in row.attach_handles if handle.missing}
            assert gone <= held
            assert row.missing == row.device.missing == (not card.plugged)
            assert len(row.attach_handles) - len(gone) == len(card.handles) * card.plugged
            assert card.plugged or held
            assert not card.plugged or card.nested == (above is not None)
            assert not card.plugged or row.device.unhealthy == card.unhealthy
            classes = [found.value for found in row.attributes if found.key == "rc"]
            assert held or classes == [card.resource_class]
        assert rows == {}
        with db.reader() as session:
            devices = set(session.scalars(sa.select(models.Device.id)))
        assert devices == {row.device_id for row in self._deployables()}

    def _assert_offers(self) -> None:
        """Placement offers what is there and clean, and nothing of a device out of service."""
        for row in self._deployables():
            good = [
                handle
                for handle in row.attach_handles
                if not handle.missing and not handle.is_left
            ]
            offered = self.cloud.placement.offered(row.rp_uuid)
            amounts = [total - reserved for total, reserved in offered.values()]
            if row.missing or row.device.unhealthy or row.device.status != models.ENABLED:
                assert sum(amounts) == 0
            else:
                assert sum(amounts) == len(good)


def test_a_new_class_waits_for_the_guest_and_no_longer(cloud: Cloud) -> None:
    history = Machine(cloud)
    history.begin(letters=["a"])
    history.change(letter="a", what="class", number=0, reports=True, works=True)
    history.delete(number=0, drops_first=True, works=True)
    history.come_to_rest(heals=True)
    history.delete(number=2, drops_first=False, works=True)
    history.teardown()


def test_a_handle_that_cannot_be_cleaned_is_not_offered(cloud: Cloud) -> None:
    history = Machine(cloud)
    history.begin(letters=[])
    history.come_to_rest(heals=True)
    history.change_the_agent(how="fails")
    history.delete(number=1, drops_first=True, works=True)
    history.come_to_rest(heals=False)
    history.teardown()


def test_at_rest_what_is_derived_is_true(cloud: Cloud) -> None:
    class History(Machine):
        def __init__(self) -> None:
            super().__init__(cloud)

    examples = os.environ.get("CYBORG_TEST_EXAMPLES")
    stateful.run_state_machine_as_test(
        History,
        settings=hypothesis.settings(
            max_examples=int(examples or 10),
            stateful_step_count=30,
            derandomize=examples is None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )
