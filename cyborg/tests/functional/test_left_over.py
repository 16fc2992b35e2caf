# SPDX-License-Identifier: Apache-2.0
"""What a failed write has left on a card is not offered before a report says what it is."""

from __future__ import annotations

import pytest

from cyborg import errors, profiles
from cyborg.arqs import binding, release, service
from cyborg.db import models
from cyborg.tests import hosts
from cyborg.tests.functional.test_programming_traits import (  # noqa: F401
    ask,
    machine,
)
from cyborg.tests.programmed_cards import IMAGES, Fpga
from cyborg.tests.programming_machine import Machine


@pytest.mark.parametrize("letter", "bc")
def test_a_region_is_offered_again_after_the_next_report(
    machine: Machine,  # noqa: F811
    letter: str,
) -> None:
    card = machine.cards[letter]
    machine.cloud.agent = "fails"
    machine.program(letter=letter, program="zip", works=True)
    # The tool has failed late: the card runs what nobody has recorded.
    card.image = IMAGES["zip-1"]
    machine.cloud.agent = "works"

    machine.let_time_pass()

    assert machine.cloud.look().records[card.name].function is None
    assert machine.cloud.free(card) == 0
    name = models.new_uuid()
    profiles.create_profile(name=name, groups=[{"resources:FPGA": "1"}], description=None)
    (arq,) = service.create(machine.cloud.ctx, name)
    where = binding.BindTarget(
        hostname=hosts.ROOT, device_rp_uuid=card.provider, instance_uuid=name
    )
    with pytest.raises(errors.Conflict, match="not reported since a write of it failed"):
        binding.request_changes(machine.cloud.ctx, {arq.uuid: where}, [])

    machine.report(works=True)

    assert machine.cloud.look().records[card.name].function == "zip"
    assert machine.cloud.free(card) == card.handles


def test_it_can_be_programmed_without_a_report(machine: Machine) -> None:  # noqa: F811
    card = machine.cards["b"]
    machine.cloud.agent = "fails"
    machine.program(letter="b", program="zip", works=True)
    machine.cloud.agent = "works"

    machine.program(letter="b", program="zip", works=True)

    assert card.image == IMAGES["zip-1"]
    assert machine.cloud.free(card) == card.handles
    machine.come_to_rest()


def leave(machine: Machine, instance: str) -> None:  # noqa: F811
    release.delete_instance_arqs(machine.cloud.ctx, instance)
    machine.cloud.placement.release(instance)


def start_and_leave_in_the_middle_of_the_write(machine: Machine, card: Fpga) -> None:  # noqa: F811
    """The handle is not cleaned yet in the end."""
    cloud = machine.cloud
    arq = ask(machine, card, **{"accel:function_id": "zip"})
    instance = str(service.get_arq(cloud.ctx, arq).instance_uuid)

    def happen() -> None:
        leave(machine, instance)
        cloud.agent = "is away"

    cloud.meanwhile = happen
    machine.let_time_pass()
    assert cloud.look().records[card.name].function == "zip"


@pytest.mark.every_database
@pytest.mark.parametrize("then", ["nothing", "lost"])
def test_a_card_is_reserved_while_a_handle_is_cleaned_whose_guest_left_during_the_write(
    machine: Machine,  # noqa: F811
    then: str,
) -> None:
    """Nova would choose it for another function, which cannot be written meanwhile."""
    cloud, card = machine.cloud, machine.cards["c"]
    start_and_leave_in_the_middle_of_the_write(machine, card)
    if then == "lost":
        card.image = ""
        machine.report(works=True)
        machine.report(works=True)
        assert cloud.look().records[card.name].function is None

    assert cloud.free(card) == 0

    cloud.agent = "works"
    machine.let_time_pass()

    assert cloud.free(card) == card.handles


@pytest.mark.parametrize("leaves", ["during the write", "after it"])
@pytest.mark.parametrize("left", [None, "zip"])
def test_a_card_is_reserved_while_a_handle_is_cleaned_after_a_failed_write(
    machine: Machine,  # noqa: F811
    leaves: str,
    left: str | None,
) -> None:
    cloud, card = machine.cloud, machine.cards["c"]
    cloud.agent = "fails"
    arq = ask(machine, card, **{"accel:function_id": "zip"})
    instance = str(service.get_arq(cloud.ctx, arq).instance_uuid)
    if leaves == "during the write":
        cloud.meanwhile = lambda: leave(machine, instance)
    machine.let_time_pass()
    card.image = IMAGES["zip-1"] if left else ""
    machine.report(works=True)

    assert cloud.look().records[card.name].function == left
    assert cloud.free(card) == 0

    if leaves == "after it":
        leave(machine, instance)
        assert cloud.free(card) == 0
    cloud.agent = "works"
    machine.let_time_pass()

    assert cloud.free(card) == card.handles


def test_other_handles_are_offered_while_one_is_cleaned_whose_guest_had_it(
    machine: Machine,  # noqa: F811
) -> None:
    cloud, card = machine.cloud, machine.cards["c"]
    arq = ask(machine, card, **{"accel:function_id": "zip"})
    machine.let_time_pass()
    cloud.agent = "is away"
    leave(machine, str(service.get_arq(cloud.ctx, arq).instance_uuid))
    machine.let_time_pass()

    assert cloud.free(card) == card.handles - 1


def test_the_remaining_handles_are_offered_while_others_want_what_was_written(
    machine: Machine,  # noqa: F811
) -> None:
    cloud, card = machine.cloud, machine.cards["c"]
    ask(machine, card, **{"accel:function_id": "zip"})
    start_and_leave_in_the_middle_of_the_write(machine, card)

    assert cloud.free(card) == card.handles - 1
