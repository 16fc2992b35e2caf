# SPDX-License-Identifier: Apache-2.0
"""What a failed write has left on a card is not offered before a report says what it is."""

from __future__ import annotations

import datetime

import pytest
from oslo_utils import fixture, timeutils

from cyborg import errors, profiles
from cyborg.arqs import binding, release, service
from cyborg.db import models
from cyborg.tests import hosts
from cyborg.tests.functional.test_programming_traits import (  # noqa: F401
    ask,
    machine,
)
from cyborg.tests.programmed_cards import IMAGES
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


@pytest.mark.parametrize("hours_off", [-1, 0, 1])
def test_a_card_is_reserved_while_a_handle_is_cleaned_whose_guest_left_during_the_write(
    machine: Machine,  # noqa: F811
    hours_off: int,
) -> None:
    """Nova would choose it for another function, which cannot be written meanwhile.

    Whose clock is off makes no difference.
    """
    cloud, card = machine.cloud, machine.cards["c"]
    arq = ask(machine, card, **{"accel:function_id": "zip"})
    instance = str(service.get_arq(cloud.ctx, arq).instance_uuid)

    def happen() -> None:
        shown = timeutils.utcnow() + datetime.timedelta(hours=hours_off)
        with fixture.TimeFixture(shown):
            release.delete_instance_arqs(cloud.ctx, instance)
        cloud.placement.release(instance)
        cloud.agent = "is away"

    cloud.meanwhile = happen
    machine.let_time_pass()

    assert cloud.look().records[card.name].function == "zip"
    assert cloud.free(card) == 0

    cloud.agent = "works"
    machine.let_time_pass()

    assert cloud.free(card) == card.handles


@pytest.mark.parametrize("hours_off", [-1, 1])
def test_other_handles_are_offered_while_one_is_cleaned_whose_guest_left_after_the_write(
    machine: Machine,  # noqa: F811
    hours_off: int,
) -> None:
    cloud, card = machine.cloud, machine.cards["c"]
    arq = ask(machine, card, **{"accel:function_id": "zip"})
    machine.let_time_pass()
    instance = str(service.get_arq(cloud.ctx, arq).instance_uuid)
    cloud.agent = "is away"
    shown = timeutils.utcnow() + datetime.timedelta(hours=hours_off)
    with fixture.TimeFixture(shown):
        release.delete_instance_arqs(cloud.ctx, instance)
    cloud.placement.release(instance)
    machine.let_time_pass()

    assert cloud.free(card) == card.handles - 1
