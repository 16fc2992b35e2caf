# SPDX-License-Identifier: Apache-2.0
"""What a failed write has left on a card is not offered before a report says what it is."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from cyborg import db, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.function_pools import capacity, pools
from cyborg.programming import operations
from cyborg.tests import boots, bound_groups
from cyborg.tests.bound_groups import ask
from cyborg.tests.fpgas import pool_spec
from cyborg.tests.programmed_cards import IMAGES, PROGRAMS, Fpga
from cyborg.tests.programming_machine import Machine

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("letter", "bc")
def test_a_region_is_offered_again_after_the_next_report(programmed, letter) -> None:
    card = programmed.cards[letter]
    programmed.cloud.agent = "fails"
    programmed.program(letter=letter, program="zip", works=True)
    # The tool has failed late: the card runs what nobody has recorded.
    card.image = IMAGES["zip-1"]
    programmed.cloud.agent = "works"

    programmed.let_time_pass()

    assert programmed.cloud.look().records[card.name].function is None
    assert programmed.cloud.free(card) == 0
    arqs = boots.arqs(programmed.cloud.ctx, group={"resources:FPGA": "1"})
    with pytest.raises(errors.Conflict, match="not reported since a write of it failed"):
        boots.bind(programmed.cloud.ctx, arqs, models.new_uuid(), device_rp_uuid=card.provider)

    programmed.report(works=True)

    assert programmed.cloud.look().records[card.name].function == "zip"
    assert programmed.cloud.free(card) == card.handles


def test_it_can_be_programmed_without_a_report(programmed: Machine) -> None:
    card = programmed.cards["b"]
    programmed.cloud.agent = "fails"
    programmed.program(letter="b", program="zip", works=True)
    programmed.cloud.agent = "works"

    programmed.program(letter="b", program="zip", works=True)

    assert card.image == IMAGES["zip-1"]
    assert programmed.cloud.free(card) == card.handles
    programmed.come_to_rest()


def leave(programmed: Machine, arq: str) -> None:
    """The guest of the ARQ is deleted."""
    programmed.cloud.placement.release(bound_groups.leave(programmed, arq))


def start_and_leave_in_the_middle_of_the_write(programmed: Machine, card: Fpga) -> None:
    """The handle is not cleaned yet in the end."""
    cloud = programmed.cloud
    arq = ask(programmed, card, **{"accel:function_id": "zip"})
    # It has its handle before the write begins, whichever work is due first.
    while cloud.do_one([work.BIND]):
        pass

    def happen() -> None:
        leave(programmed, arq)
        cloud.agent = "is away"

    cloud.meanwhile = happen
    programmed.let_time_pass()
    assert cloud.look().records[card.name].function == "zip"


@pytest.mark.every_database
def test_a_card_is_reserved_while_a_handle_is_cleaned_whose_guest_left_during_the_write(
    programmed: Machine,
) -> None:
    """Nova would choose it for another function, which cannot be written meanwhile."""
    cloud, card = programmed.cloud, programmed.cards["c"]
    start_and_leave_in_the_middle_of_the_write(programmed, card)
    pools.create_pool(pool_spec(name="zip", function_id="zip", free=1, max_devices=1))

    # What is reserved is no free slot of a pool.
    assert ready() == cloud.free(card) == 0

    cloud.agent = "works"
    programmed.let_time_pass()

    assert ready() == cloud.free(card) == card.handles


@pytest.mark.every_database
def test_it_is_reserved_too_if_the_card_has_lost_what_was_written(programmed: Machine) -> None:
    cloud, card = programmed.cloud, programmed.cards["c"]
    start_and_leave_in_the_middle_of_the_write(programmed, card)
    card.image = ""
    for _ in range(2):
        programmed.report(works=True)
    assert cloud.look().records[card.name].function is None

    assert cloud.free(card) == 0

    cloud.agent = "works"
    programmed.let_time_pass()

    assert cloud.free(card) == card.handles


@pytest.mark.parametrize("leaves", ["during the write", "after it"])
@pytest.mark.parametrize("left", [None, "zip"])
def test_a_card_is_reserved_while_a_handle_is_cleaned_after_a_failed_write(
    programmed, leaves, left
) -> None:
    cloud, card = programmed.cloud, programmed.cards["c"]
    cloud.agent = "fails"
    arq = ask(programmed, card, **{"accel:function_id": "zip"})
    if leaves == "during the write":
        cloud.meanwhile = lambda: leave(programmed, arq)
    programmed.let_time_pass()
    card.image = IMAGES["zip-1"] if left else ""
    programmed.report(works=True)

    assert cloud.look().records[card.name].function == left
    assert cloud.free(card) == 0

    if leaves == "after it":
        leave(programmed, arq)
        assert cloud.free(card) == 0
    programmed.look()
    cloud.agent = "works"
    programmed.let_time_pass()

    assert cloud.free(card) == card.handles


@pytest.mark.every_database
def test_a_card_is_offered_while_a_handle_is_cleaned_though_a_write_of_it_was_refused(
    programmed: Machine,
) -> None:
    """It runs what it ran before."""
    cloud, card = programmed.cloud, programmed.cards["c"]
    cloud.agent = "fails at the start"
    arq = ask(programmed, card, **{"accel:function_id": "zip"})

    programmed.let_time_pass()

    assert cloud.look().records[card.name].function == "aes"
    assert cloud.free(card) == card.handles - 1
    leave(programmed, arq)
    programmed.let_time_pass()
    assert cloud.free(card) == card.handles - 1


def leave_while_it_is_restored(
    programmed: Machine,
    card: Fpga,
    *,
    others: bool = False,
) -> list[str]:
    """The handle is not cleaned yet in the end; who stays."""
    cloud = programmed.cloud
    arqs = [ask(programmed, card, **{"accel:function_id": "aes"}) for _ in range(1 + others)]
    programmed.let_time_pass()
    leaving, *staying = arqs

    def happen() -> None:
        leave(programmed, leaving)
        cloud.agent = "is away"

    cloud.meanwhile = happen
    card.lose()
    programmed.report(works=True)
    assert cloud.look().records[card.name].function == "aes"
    return staying


@pytest.mark.every_database
@pytest.mark.parametrize("others", [False, True])
def test_a_card_is_reserved_while_a_handle_is_cleaned_whose_guest_left_while_it_was_restored(
    programmed, others
) -> None:
    cloud, card = programmed.cloud, programmed.cards["c"]
    staying = leave_while_it_is_restored(programmed, card, others=others)

    assert cloud.free(card) == (card.handles - 1 if others else 0)

    # Who was served in the end leaves like any other.
    for arq in staying:
        cloud.agent = "works"
        programmed.let_time_pass()
        cloud.agent = "is away"
        leave(programmed, arq)
        programmed.let_time_pass()
        assert cloud.free(card) == card.handles - 1
    cloud.agent = "works"
    programmed.let_time_pass()

    assert cloud.free(card) == card.handles


def test_nothing_is_written_for_who_has_left_before_it_began(programmed) -> None:
    cloud, card = programmed.cloud, programmed.cards["c"]
    cloud.updates_placement = False
    arq = ask(programmed, card, **{"accel:function_id": "zip"})
    while cloud.do_one():
        pass
    assert [each.state for each in operations.list_operations()][-1] == "reserving"
    cloud.agent = "is away"

    leave(programmed, arq)
    programmed.let_time_pass()

    assert operations.list_operations()[-1].error == "Nobody waits for it any more."
    assert card.image == IMAGES["aes-1"]
    assert cloud.free(card) == card.handles - 1


def test_a_card_is_reserved_while_a_handle_is_cleaned_that_was_taken_during_the_write(
    programmed: Machine,
) -> None:
    """The guest waited for what others had asked for, and left before it was there."""
    cloud, card = programmed.cloud, programmed.cards["c"]
    operations.ask(cloud.row(card).uuid, PROGRAMS["zip"], "user admin")
    arq = ask(programmed, card, **{"accel:function_id": "zip"})

    def happen() -> None:
        cloud.do_one([work.BIND])
        assert cloud.number_of(arq) is not None
        leave(programmed, arq)
        cloud.agent = "is away"

    cloud.meanwhile = happen
    cloud.do_one([work.PROGRAM])
    programmed.let_time_pass()

    assert card.loaded == "zip"
    assert cloud.free(card) == 0
    programmed.look()


def test_what_was_left_of_an_earlier_write_is_minded_though_the_next_one_was_refused(
    programmed: Machine,
) -> None:
    cloud, card = programmed.cloud, programmed.cards["c"]
    staying = ask(programmed, card, **{"accel:function_id": "zip"})
    start_and_leave_in_the_middle_of_the_write(programmed, card)
    # Others want what was written.
    assert cloud.free(card) == card.handles - 1
    card.lose()
    cloud.agent = "fails at the start"
    programmed.report(works=True)
    cloud.agent = "is away"
    leave(programmed, staying)
    programmed.let_time_pass()
    programmed.report(works=True)

    assert cloud.row(card).is_settled
    assert cloud.free(card) == 0


def ready() -> int:
    """The free slots of the pool, and all of its function."""
    with db.reader() as session:
        (pool,) = session.scalars(sa.select(models.FunctionPool))
        counted = capacity.count(session, [pool])[pool.id].ready
        of_all = capacity.ready_of([pool.function_plain])
        total = session.scalar(sa.select(of_all.c.slots)) or 0
    assert total == counted
    return counted


def test_the_other_handles_are_offered_again_when_somebody_takes_one(programmed) -> None:
    """Nova had given it some of the card before another guest left that."""
    cloud, card = programmed.cloud, programmed.cards["c"]
    uuid = models.new_uuid()
    cloud.placement.allocate(uuid, card.provider, FPGA=1)
    leave_while_it_is_restored(programmed, card)
    assert cloud.free(card) == 0

    (arq,) = boots.arqs(cloud.ctx, group={"resources:FPGA": "1", "accel:function_id": "aes"})
    boots.bind(cloud.ctx, [arq], uuid, device_rp_uuid=card.provider)
    while cloud.do_one():
        pass

    assert cloud.free(card) == card.handles - 1
    cloud.placement.assert_right("host-1")
