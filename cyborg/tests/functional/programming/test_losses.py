# SPDX-License-Identifier: Apache-2.0
"""What hardware loses under its guests is put back, however long that takes."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from cyborg import db, work
from cyborg.arqs import service
from cyborg.audits import consistency
from cyborg.common import errors
from cyborg.db import models
from cyborg.hosts import flags, removal
from cyborg.inventory import query
from cyborg.peers import glance
from cyborg.placement import desired
from cyborg.programming import operations
from cyborg.tests import hosts
from cyborg.tests.programmed_cards import IMAGES, PROGRAMS, Fpga
from cyborg.tests.programming_machine import Machine
from cyborg.tests.recoveries import find_none, recoveries

pytestmark = pytest.mark.slow


def lose(machine: Machine, letter: str, agent: str) -> Fpga:
    """Let the power of a card fail, with an agent such that it cannot be put back."""
    card = machine.cards[letter]
    card.lose()
    machine.cloud.agent = agent
    machine.report(works=True)
    return card


@pytest.mark.parametrize(
    ("agent", "error"), [("fails", "written"), ("fails at the start", "read")]
)
def test_what_a_guest_has_is_put_back_as_soon_as_its_host_can(machine, agent, error) -> None:
    machine.boot(boots=[("b", "aes", False)], works=True)
    card = lose(machine, "b", agent)

    machine.let_time_pass()

    assert recoveries() == [("reserving", f"it cannot be {error}")]
    machine.cloud.agent = "works"
    machine.let_time_pass()
    assert card.image == machine.guests[0].got
    assert recoveries() == [("succeeded", None)]
    assert consistency.violations() == []


@pytest.fixture
def lost(machine: Machine) -> Fpga:
    """A card that has lost the program of its guest, while another one is asked for.

    That was asked for before the guest came, and Glance does not answer.
    """
    for letter in "ab":
        machine.program(letter=letter, program="aes", works=True)
    card = machine.cards["b"]
    machine.cloud.finds = False
    machine.program(letter="b", program="zip", works=True)
    machine.boot(boots=[("b", "aes", False)], works=True)
    assert machine.guests[0].got == IMAGES["aes-1"]
    card.lose()
    machine.report(works=False)
    return card


def test_what_was_lost_is_put_back_without_glance_whatever_else_was_asked_for(
    machine: Machine, lost: Fpga
) -> None:
    for _ in range(2):
        machine.let_time_pass()

    assert lost.image == machine.guests[0].got
    assert recoveries() == [("succeeded", None)]


def test_a_card_that_leaves_the_bus_after_its_loss_is_put_back_when_it_returns(
    machine: Machine, lost: Fpga
) -> None:
    machine.cards["a"].lose()
    machine.report(works=False)
    del machine.cards["b"]
    machine.report(works=False)
    for _ in range(2):
        machine.cloud.let_time_pass()
        while machine.cloud.do_one():
            pass
    asked = [each.state for each in operations.list_operations() if each.consumer_uuid is None]
    assert "queued" not in asked
    machine.cards["b"] = lost

    machine.report(works=True)

    assert lost.image == machine.guests[0].got
    assert ("succeeded", None) in recoveries()


def test_what_else_placement_has_does_not_hinder(machine: Machine) -> None:
    """A provider that is gone, with an allocation, and inventory of somebody else's."""
    placement, first, second = machine.cloud.placement, machine.cards["a"], machine.cards["b"]
    placement.allocate(models.new_uuid(), machine.cards["c"].provider, FPGA=1)
    del machine.cards["c"]
    machine.report(works=True)
    assert work.is_wanted(work.PLACEMENT, "host-1")
    total = {"total": 8}
    placement.set_inventories(second.provider, FPGA={"total": second.handles}, CUSTOM_OTHER=total)

    for letter in "ab":
        machine.program(letter=letter, program="aes", works=True)

    assert [each.state for each in operations.list_operations()] == ["succeeded"] * 2
    assert second.loaded == "aes"
    machine.let_time_pass()
    assert machine.cloud.free(first) == first.handles


def give_up_an_offer(machine: Machine) -> None:
    """Card b was to be offered, with what it runs; the answer was given up."""
    cloud = machine.cloud
    machine.program(letter="b", program="aes", works=True)
    device = cloud.row(machine.cards["b"]).device.uuid
    flags.disable_device(device)
    machine.report(works=True)
    cloud.placement.delay_after = 0
    flags.enable_device(device)
    machine.report(works=True)
    assert cloud.free(machine.cards["b"]) == 0


def test_what_placement_carries_out_late_does_not_offer_a_card_that_is_written(machine) -> None:
    cloud, card = machine.cloud, machine.cards["b"]
    give_up_an_offer(machine)
    ends: list[int] = []

    def happen() -> None:
        ends.extend(cloud.placement.carry_out())
        assert cloud.free(card) == 0

    cloud.meanwhile = happen
    machine.program(letter="b", program="zip", works=True)
    machine.let_time_pass()

    assert ends == [409]
    assert (card.loaded, cloud.free(card)) == ("zip", card.handles)
    machine.look()


def reserve(machine: Machine, letter: str, program: str) -> None:
    """Have an operation wait until Placement is updated, which is not done."""
    machine.cloud.updates_placement = False
    machine._ask(letter, program)
    machine.cloud.do_one([work.PROGRAM])
    assert [each.state for each in operations.list_operations()][-1] == "reserving"


def test_nothing_is_written_while_placement_may_carry_out_what_was_given_up(machine) -> None:
    """It has nothing to offer just now, and the operation looks before the next update."""
    cloud, card = machine.cloud, machine.cards["b"]
    give_up_an_offer(machine)

    reserve(machine, "b", "zip")

    cloud.placement.carry_out()
    cloud.updates_placement = True
    machine.let_time_pass()
    assert card.loaded == "zip"


def set_unsure(card: Fpga) -> None:
    """As a conductor notes it that was stopped before it did what it was about to do."""
    row = models.ResourceProvider
    with db.writer() as session:
        found = session.scalars(sa.select(row).where(row.uuid == card.provider)).one()
        found.written = found.written | {"unsure": True}


def test_an_operation_has_a_provider_written_of_which_nobody_knows_how_it_is(machine) -> None:
    """The next audit may be an hour away."""
    cloud, card = machine.cloud, machine.cards["b"]
    reserve(machine, "b", "zip")
    while cloud.do_one([work.PLACEMENT]):
        pass
    set_unsure(card)

    machine.let_time_pass()
    (waiting,) = operations.list_operations()
    assert waiting.state == "reserving"
    assert "may yet carry out what it was asked" in operations.last_entry(waiting)
    machine.let_time_pass()

    assert card.loaded == "zip"
    machine.come_to_rest()


def test_a_conductor_that_has_lost_a_host_notes_nothing_of_its_providers(machine) -> None:
    """It was stopped for long, and another one has done all."""
    cloud, card = machine.cloud, machine.cards["b"]

    def take(method: str, path: str) -> None:
        cloud.placement.before = None
        with db.writer() as session:
            db.update(session, models.Work, models.Work.kind == work.PLACEMENT, owner="another")

    flags.disable_device(cloud.row(card).device.uuid)
    cloud.placement.before = take
    with pytest.raises(work.LeaseLost):
        cloud.do_one([work.PLACEMENT])

    assert not desired.unsure([card.provider])


def test_an_operation_says_what_it_waits_for(machine: Machine) -> None:
    machine.cloud.finds = False

    machine.program(letter="b", program="aes", works=True)
    machine.let_time_pass()

    (operation,) = operations.list_operations()
    said = [entry["text"] for entry in operation.history]
    assert said[1:] == ["It waits: Glance cannot be reached: Glance is away"]
    machine.cloud.finds, machine.cloud.agent = True, "is away"
    machine.let_time_pass()
    (operation,) = operations.list_operations()
    assert operation.history[-1]["text"] == "It waits: the agent does not answer"
    assert sum("waits" in entry["text"] for entry in operation.history) == 2


def test_a_device_that_is_being_written_is_not_removed(machine: Machine) -> None:
    """It may only have left the bus for that, and come back while it is still written."""
    machine.cloud.agent = "is not heard"
    machine.program(letter="b", program="aes", works=True)
    assert [each.state for each in operations.list_operations()] == ["writing"]
    del machine.cards["b"]
    machine.report(works=False)
    (gone,) = (each for each in query.list_devices() if each.missing)

    with pytest.raises(errors.Conflict, match="is being programmed by operation"):
        removal.remove_device(gone.uuid, force=False)

    given_up = removal.remove_device(gone.uuid, force=True)

    assert given_up.devices == (gone.uuid,)
    (operation,) = operations.list_operations()
    (told,) = given_up.not_excluded
    writing = f"Host host-1 may be writing deployable host-1_b for operation {operation.uuid}"
    assert told == f"{writing}, or begin to within 10 seconds."
    machine.let_time_pass()
    assert [each.state for each in operations.list_operations()] == ["failed"]


def test_a_bind_waits_for_a_card_that_leaves_the_bus_while_it_is_written(machine) -> None:
    machine.program(letter="c", program="aes", works=True)
    card = machine.cards["c"]

    def happen() -> None:
        machine.cards.pop("c")
        machine.report(works=False)
        machine.cards["c"] = card

    machine.cloud.meanwhile = happen
    machine.boot(boots=[("c", "zip", True)], works=True)
    machine.report(works=True)

    (guest,) = machine.guests
    assert card.loaded == "zip"
    assert machine.cloud.look().bound.keys() == {guest.arq}
    machine.come_to_rest()


def test_a_bind_fails_in_the_end_if_its_card_does_not_show_the_handle_after_the_write(
    machine: Machine,
) -> None:
    cloud, card = machine.cloud, machine.cards["b"]

    def happen() -> None:
        card.handles = 0
        machine.report(works=False)

    cloud.meanwhile = happen
    machine.boot(boots=[("b", "zip", True)], works=True)
    (guest,) = machine.guests
    assert card.loaded == "zip"
    assert service.get_arq(cloud.ctx, guest.arq).state == "BindStarted"

    with db.writer() as session:
        db.update(session, models.Arq, bind_started_ms=1)
    machine.let_time_pass()
    found = service.get_arq(cloud.ctx, guest.arq)
    assert found.state == "BindFailed"
    assert "did not show the handle again" in (found.state_reason or "")


@pytest.mark.parametrize("lacks", ["the handle", "the card"])
@pytest.mark.parametrize("when", ["during the write", "after it"])
def test_a_bind_outlives_reports_that_lack_what_its_card_shows_later(machine, when, lacks) -> None:
    """They were begun after the write, but virtual functions, for example, are made anew slowly."""
    cloud, card = machine.cloud, machine.cards["b"]

    def vanish() -> None:
        if lacks == "the handle":
            card.handles = 0
        else:
            machine.cards.pop("b")
        machine.report(works=False)
        machine.cards["b"] = card

    machine.boot(boots=[("b", "zip", True)], works=False)
    if when == "during the write":
        cloud.meanwhile = vanish
    for kind in (work.BIND, work.HOST_STEP, work.PROGRAM):
        cloud.do_one([kind])
    assert [each.state for each in operations.list_operations()] == ["succeeded"]
    (guest,) = machine.guests
    for _ in range(2):
        vanish()
        machine.let_time_pass()
        assert service.get_arq(cloud.ctx, guest.arq).state == "BindStarted"

    card.handles = 1
    machine.report(works=True)

    assert cloud.look().bound.keys() == {guest.arq}
    machine.come_to_rest()


def test_a_bind_to_a_card_that_was_written_before_it_began_does_not_wait_for_it(machine) -> None:
    machine.program(letter="b", program="zip", works=True)
    card = machine.cards["b"]
    machine.boot(boots=[("b", "zip", True)], works=False)
    with db.writer() as session:
        ended_ms = session.scalar(sa.select(sa.func.max(models.Deployable.programmed_ms)))
        assert ended_ms is not None
        db.update(session, models.Arq, bind_started_ms=ended_ms + 1)
    card.stepped = True
    machine.report(works=False)
    machine.cloud.do_one([work.BIND])
    (guest,) = machine.guests
    assert service.get_arq(machine.cloud.ctx, guest.arq).state == "BindStarted"

    card.handles = 0
    machine.report(works=False)

    assert service.get_arq(machine.cloud.ctx, guest.arq).state == "BindFailed"


def test_what_a_report_shows_during_what_is_then_refused_is_not_forgotten(machine) -> None:
    machine.program(letter="a", program="aes", works=True)
    card = machine.cards["a"]
    assert machine.cloud.free(card) == card.handles
    machine.cloud.agent = "fails at the start"
    machine.meet_a_step("a", loses=True)

    machine.program(letter="a", program="zip", works=True)

    assert [each.state for each in operations.list_operations()] == ["succeeded", "failed"]
    assert machine.cloud.free(card) == 0
    machine.look()
    machine.come_to_rest()


def test_what_a_guest_loses_and_leaves_while_an_image_is_looked_for_is_not_forgotten(
    machine: Machine,
) -> None:
    machine.program(letter="a", program="aes", works=True)
    machine.cloud.finds = False
    machine.program(letter="a", program="zip", works=True)
    machine.boot(boots=[("a", "aes", False)], works=True)
    card = machine.cards["a"]

    def happen() -> None:
        card.lose()
        machine.report(works=False)
        machine.delete(number=0, forced=False, works=False)

    machine.cloud.finds, machine.cloud.while_asked = True, happen
    machine.cloud.agent = "fails at the start"

    machine.let_time_pass()

    assert machine.guests == []
    assert machine.cloud.free(card) == 0
    machine.look()


@pytest.mark.parametrize("profile", ["aes", "named aes", "needs aes"])
def test_a_function_that_a_guest_asked_for_is_put_back_whoever_wrote_it(
    machine: Machine, shown: Fpga, profile: str
) -> None:
    machine.boot(boots=[("a", profile, False)], works=True)
    assert machine.guests[0].got == IMAGES["aes-1"]
    assert machine.cloud.look().records[shown.name].image is None

    lose(machine, "a", "works")

    assert shown.loaded == "aes"
    assert recoveries() == [("succeeded", None)]
    machine.come_to_rest()


def test_a_function_that_was_misread_is_believed_though_there_is_no_image_of_it(
    machine: Machine, shown: Fpga, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.boot(boots=[("a", "aes", False)], works=True)

    with monkeypatch.context() as nothing:
        nothing.setattr(glance, "find_image", find_none)
        shown.misread = True
        machine.report(works=True)
        assert recoveries() == [("queued", "There is none")]
        machine.report(works=True)
        machine.let_time_pass()

    assert recoveries() == [("succeeded", None)]
    assert machine.cloud.free(shown) == shown.handles
    machine.look()


def test_a_function_that_nobody_asked_for_is_not_written(machine: Machine, shown: Fpga) -> None:
    machine.boot(boots=[("a", "any", False)], works=True)

    lose(machine, "a", "works")

    assert shown.image == ""
    assert machine.cloud.free(shown) == 0
    assert recoveries() == []
    machine.come_to_rest()


def test_a_function_is_not_looked_for_when_its_guest_is_gone(machine, shown) -> None:
    machine.boot(boots=[("a", "aes", False)], works=True)
    machine.cloud.finds = False
    lose(machine, "a", "works")
    assert [state for state, _ in recoveries()] == ["queued"]

    machine.delete(number=0, forced=False, works=True)
    machine.let_time_pass()

    assert recoveries() == [("failed", "No guest has it any more.")]
    machine.cloud.finds = True
    machine.come_to_rest()


def test_what_nobody_has_any_more_is_not_put_back(machine: Machine) -> None:
    machine.boot(boots=[("c", "aes", False)], works=True)
    card = lose(machine, "c", "fails")

    machine.delete(number=0, forced=False, works=True)
    machine.let_time_pass()
    machine.cloud.agent = "works"
    machine.let_time_pass()

    assert recoveries() == [("failed", "No guest has it any more.")]
    assert (card.image, machine.cloud.prepared) == ("", set())
    machine.report(works=True)
    assert machine.cloud.free(card) == card.handles


@pytest.mark.parametrize("profile", ["aes", "any"])
@pytest.mark.parametrize("agent", ["works", "fails"])
def test_what_is_lost_while_a_guest_is_given_it_is_put_back_or_not_given(
    machine: Machine, agent: str, profile: str
) -> None:
    machine.program(letter="c", program="aes", works=True)
    machine.cloud.agent = "is not heard"
    machine.boot(boots=[("c", profile, False)], works=True)
    assert len(machine.cloud.prepared) == 1

    card = lose(machine, "c", agent)
    for _ in range(3):
        machine.let_time_pass()

    if agent == "works":
        assert machine.guests[0].got == card.image == IMAGES["aes-1"]
        assert recoveries() == [("succeeded", None)]
    else:
        assert machine.guests[0].got is None
        assert recoveries() == [("failed", "No guest has it any more.")]
    machine.come_to_rest()
    assert len(machine.cloud.prepared) == (agent == "works")


def test_who_wants_what_cannot_be_put_back_now_is_not_kept_waiting(machine: Machine) -> None:
    machine.boot(boots=[("c", "aes", False)], works=True)
    lose(machine, "c", "fails")

    machine.boot(boots=[("c", "aes", False)], works=True)

    # It was refused at once; who asked first waits.
    assert [each.got for each in machine.guests] == [IMAGES["aes-1"]]
    (deployable,) = (row for row in hosts.deployables() if not row.is_settled)
    joined = operations.ask(deployable.uuid, PROGRAMS["aes"], "user admin")
    with pytest.raises(errors.ServiceUnavailable, match=r"again and again: it cannot be written"):
        operations.wait(machine.cloud.ctx, joined.uuid, 60)


def test_a_handle_is_not_touched_while_its_card_is_written(machine: Machine) -> None:
    """Neither cleaned after the guest that it is written for, nor prepared for another."""
    machine.cloud.agent = "dies"
    machine.boot(boots=[("c", "aes", False)], works=True)
    card = machine.cards["c"]
    assert card.child is not None

    machine.delete(number=0, forced=False, works=True)
    machine.report(works=True)
    machine.let_time_pass()
    card.end_child()
    machine.come_to_rest()

    assert machine.cloud.free(card) == card.handles
