# SPDX-License-Identifier: Apache-2.0
"""Guests that require the trait of a function, instead of asking for the function or besides."""

from __future__ import annotations

import dataclasses

import pytest

from cyborg import profiles
from cyborg.arqs import bind_requests, binding, service
from cyborg.common import errors
from cyborg.db import models
from cyborg.drivers import base
from cyborg.programming import operations, program
from cyborg.tests import hosts
from cyborg.tests.programmed_cards import IMAGES, Fpga
from cyborg.tests.programmed_host import Fpgas
from cyborg.tests.programming_machine import Machine

AES, ZIP = (f"trait:{program.function_trait('FAKE', function)}" for function in ("aes", "zip"))


@pytest.fixture
def machine(fpgas: Fpgas) -> Machine:
    """A host two of whose cards run a function."""
    machine = Machine(fpgas)
    machine.report(works=True)
    for letter in "bc":
        machine.program(letter=letter, program="aes", works=True)
    return machine


def ask(machine: Machine, card: Fpga, **group: str) -> str:
    """Ask for an ARQ with such a group to be bound to a card that Placement has given out."""
    name = models.new_uuid()
    groups = [{"resources:FPGA": "1"} | group]
    profiles.create_profile(name=name, groups=groups, description=None, uuid=None)
    cloud = machine.cloud
    cloud.placement.allocate(name, card.provider, FPGA=1)
    (arq,) = service.create(cloud.ctx, name)
    target = bind_requests.BindTarget(
        hostname=hosts.ROOT, device_rp_uuid=card.provider, consumer_uuid=name
    )
    binding.request_changes(cloud.ctx, {arq.uuid: target}, [])
    return arq.uuid


def read(machine: Machine, uuid: str) -> tuple[str, str | None]:
    found = service.get_arq(machine.cloud.ctx, uuid)
    return found.state, found.private_reason or found.state_reason


def lose(machine: Machine, card: Fpga) -> None:
    card.lose()
    machine.report(works=True)


@pytest.mark.parametrize("letter", "bc")
def test_who_requires_the_trait_is_not_bound_to_what_has_lost_it(
    machine: Machine, letter: str
) -> None:
    card = machine.cards[letter]
    arq = ask(machine, card, **{AES: "required"})

    lose(machine, card)

    state, reason = read(machine, arq)
    assert state == "BindFailed"
    assert reason == f"Provider {card.provider} changed: {AES.replace(':', ' ')} is required."
    machine.come_to_rest()


def test_who_forbids_the_trait_is_not_bound_to_what_has_it_by_now(machine: Machine) -> None:
    card = machine.cards["b"]
    arq = ask(machine, card, **{ZIP: "forbidden"})

    card.lose()
    # Somebody else has written it; Placement knows nothing of that yet.
    card.lose()
    card.image = IMAGES["zip-1"]
    machine.report(works=True)

    state, reason = read(machine, arq)
    assert state == "BindFailed"
    assert f"{ZIP.replace(':', ' ')} is forbidden" in (reason or "")


@pytest.mark.parametrize(
    "asked", [{"accel:function_id": "AES"}, {"accel:bitstream_id": IMAGES["aes-1"]}]
)
def test_who_asks_for_the_function_as_well_has_it_programmed_again(
    machine: Machine, asked: dict[str, str]
) -> None:
    card = machine.cards["b"]
    arq = ask(machine, card, **{AES: "required"}, **asked)

    lose(machine, card)
    machine.let_time_pass()

    assert read(machine, arq) == ("Bound", None)
    assert card.image == IMAGES["aes-1"]
    machine.come_to_rest()


def test_a_trait_that_goes_with_the_programming_cannot_be_required(machine: Machine) -> None:
    with pytest.raises(errors.Invalid, match="is required, which goes with what it runs now"):
        ask(machine, machine.cards["b"], **{AES: "required", "accel:function_id": "zip"})


@pytest.mark.parametrize(
    "asked", [{"accel:function_name": "Zip"}, {"accel:bitstream_id": IMAGES["zip-1"]}]
)
def test_an_image_that_does_not_give_the_trait_is_not_written(
    machine: Machine, asked: dict[str, str]
) -> None:
    """Whoever asked for it was not told, as nobody but a conductor reached Glance."""
    card = machine.cards["b"]
    arq = ask(machine, card, **{AES: "required"}, **asked)

    machine.let_time_pass()

    assert card.image == IMAGES["aes-1"]
    trait = AES.replace(":", " ")
    state, reason = read(machine, arq)
    assert state == "BindFailed"
    assert (reason or "").endswith(f"does not give what is asked for: {trait} is required.")
    machine.come_to_rest()


def test_who_forbids_the_trait_of_the_image_does_not_get_it(machine: Machine) -> None:
    card = machine.cards["b"]
    arq = ask(machine, card, **{ZIP: "forbidden", "accel:function_name": "Zip"})

    machine.let_time_pass()

    assert card.image == IMAGES["aes-1"]
    state, reason = read(machine, arq)
    assert state == "BindFailed"
    assert "is forbidden" in (reason or "")


def test_who_forbids_the_trait_of_the_function_is_refused(machine: Machine) -> None:
    with pytest.raises(errors.Invalid, match="is forbidden, which comes with what"):
        ask(machine, machine.cards["b"], **{ZIP: "forbidden", "accel:function_id": "zip"})


@pytest.mark.parametrize("letter", "bc")
def test_another_trait_may_be_misread_while_the_card_is_written(
    machine: Machine, letter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_well, card, shown = Fpga.device, machine.cards[letter], ["CUSTOM_REGION_1"]

    def device(fpga: Fpga) -> base.Device:
        found = read_well(fpga)
        (part,) = found.deployables
        part = dataclasses.replace(part, traits=tuple(shown))
        return dataclasses.replace(found, deployables=(part,))

    def happen() -> None:
        shown[:] = ["CUSTOM_REGION_FFFF"]
        machine.report(works=False)
        shown[:] = ["CUSTOM_REGION_1"]

    monkeypatch.setattr(Fpga, "device", device)
    machine.report(works=True)
    arq = ask(
        machine, card, **{"trait:CUSTOM_REGION_1": "required", "accel:function_id": "zip"}
    )
    machine.cloud.meanwhile = happen

    machine.let_time_pass()

    assert card.loaded == "zip"
    assert read(machine, arq) == ("Bound", None)


@pytest.mark.parametrize("letter", "bc")
def test_what_a_guest_required_is_put_back_whoever_wrote_it(
    machine: Machine, letter: str
) -> None:
    card = machine.cards[letter]
    # Somebody else has written it; Placement knows nothing of that yet.
    card.lose()
    card.image = IMAGES["zip-1"]
    machine.report(works=True)
    assert machine.cloud.look().records[card.name].image is None
    arq = ask(machine, card, **{ZIP: "required"})
    machine.let_time_pass()
    assert read(machine, arq) == ("Bound", None)

    lose(machine, card)

    assert card.loaded == "zip"
    assert operations.list_operations()[-1].asked_by == operations.RECOVERY
    assert read(machine, arq) == ("Bound", None)


def test_what_a_guest_forbids_is_not_put_back(machine: Machine) -> None:
    card = machine.cards["b"]
    # Somebody else has written it; Placement knows nothing of that yet.
    card.lose()
    card.image = IMAGES["zip-1"]
    machine.report(works=True)
    arq = ask(machine, card, **{AES: "forbidden"})
    machine.let_time_pass()
    assert read(machine, arq) == ("Bound", None)

    lose(machine, card)

    assert card.image == ""
    assert operations.RECOVERY not in {each.asked_by for each in operations.list_operations()}
