# SPDX-License-Identifier: Apache-2.0
"""Guests that require the trait of a function, instead of asking for the function or besides."""

from __future__ import annotations

import dataclasses

import pytest

from cyborg.common import errors
from cyborg.drivers import base
from cyborg.programming import operations, program
from cyborg.tests.bound_groups import ask, read
from cyborg.tests.programmed_cards import IMAGES, Fpga
from cyborg.tests.programming_machine import Machine

AES, ZIP = (f"trait:{program.function_trait('FAKE', function)}" for function in ("aes", "zip"))


def lose(programmed: Machine, card: Fpga) -> None:
    card.lose()
    programmed.report(works=True)


@pytest.mark.parametrize("letter", "bc")
def test_who_requires_the_trait_is_not_bound_to_what_has_lost_it(programmed, letter) -> None:
    card = programmed.cards[letter]
    arq = ask(programmed, card, **{AES: "required"})

    lose(programmed, card)

    state, reason = read(programmed, arq)
    assert state == "BindFailed"
    assert reason == f"Provider {card.provider} changed: {AES.replace(':', ' ')} is required."
    programmed.come_to_rest()


def test_who_forbids_the_trait_is_not_bound_to_what_has_it_by_now(programmed: Machine) -> None:
    card = programmed.cards["b"]
    arq = ask(programmed, card, **{ZIP: "forbidden"})

    card.lose()
    # Somebody else has written it; Placement knows nothing of that yet.
    card.lose()
    card.image = IMAGES["zip-1"]
    programmed.report(works=True)

    state, reason = read(programmed, arq)
    assert state == "BindFailed"
    assert f"{ZIP.replace(':', ' ')} is forbidden" in (reason or "")


@pytest.mark.parametrize(
    "asked", [{"accel:function_id": "AES"}, {"accel:bitstream_id": IMAGES["aes-1"]}]
)
def test_who_asks_for_the_function_as_well_has_it_programmed_again(programmed, asked) -> None:
    card = programmed.cards["b"]
    arq = ask(programmed, card, **{AES: "required"}, **asked)

    lose(programmed, card)
    programmed.let_time_pass()

    assert read(programmed, arq) == ("Bound", None)
    assert card.image == IMAGES["aes-1"]
    programmed.come_to_rest()


def test_a_trait_that_goes_with_the_programming_cannot_be_required(programmed: Machine) -> None:
    with pytest.raises(errors.Invalid, match="is required, which goes with what it runs now"):
        ask(programmed, programmed.cards["b"], **{AES: "required", "accel:function_id": "zip"})


@pytest.mark.parametrize(
    "asked", [{"accel:function_name": "Zip"}, {"accel:bitstream_id": IMAGES["zip-1"]}]
)
def test_an_image_that_does_not_give_the_trait_is_not_written(programmed, asked) -> None:
    """Whoever asked for it was not told, as nobody but a conductor reached Glance."""
    card = programmed.cards["b"]
    arq = ask(programmed, card, **{AES: "required"}, **asked)

    programmed.let_time_pass()

    assert card.image == IMAGES["aes-1"]
    trait = AES.replace(":", " ")
    state, reason = read(programmed, arq)
    assert state == "BindFailed"
    assert (reason or "").endswith(f"does not give what is asked for: {trait} is required.")
    programmed.come_to_rest()


def test_who_forbids_the_trait_of_the_image_does_not_get_it(programmed: Machine) -> None:
    card = programmed.cards["b"]
    arq = ask(programmed, card, **{ZIP: "forbidden", "accel:function_name": "Zip"})

    programmed.let_time_pass()

    assert card.image == IMAGES["aes-1"]
    state, reason = read(programmed, arq)
    assert state == "BindFailed"
    assert "is forbidden" in (reason or "")


def test_who_forbids_the_trait_of_the_function_is_refused(programmed: Machine) -> None:
    with pytest.raises(errors.Invalid, match="is forbidden, which comes with what"):
        ask(programmed, programmed.cards["b"], **{ZIP: "forbidden", "accel:function_id": "zip"})


@pytest.mark.parametrize("letter", "bc")
def test_another_trait_may_be_misread_while_the_card_is_written(
    programmed: Machine, letter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_well, card, shown = Fpga.device, programmed.cards[letter], ["CUSTOM_REGION_1"]

    def device(fpga: Fpga) -> base.Device:
        found = read_well(fpga)
        (part,) = found.deployables
        part = dataclasses.replace(part, traits=tuple(shown))
        return dataclasses.replace(found, deployables=(part,))

    def happen() -> None:
        shown[:] = ["CUSTOM_REGION_FFFF"]
        programmed.report(works=False)
        shown[:] = ["CUSTOM_REGION_1"]

    monkeypatch.setattr(Fpga, "device", device)
    programmed.report(works=True)
    arq = ask(
        programmed, card, **{"trait:CUSTOM_REGION_1": "required", "accel:function_id": "zip"}
    )
    programmed.cloud.meanwhile = happen

    programmed.let_time_pass()

    assert card.loaded == "zip"
    assert read(programmed, arq) == ("Bound", None)


@pytest.mark.parametrize("letter", "bc")
def test_what_a_guest_required_is_put_back_whoever_wrote_it(programmed, letter) -> None:
    card = programmed.cards[letter]
    # Somebody else has written it; Placement knows nothing of that yet.
    card.lose()
    card.image = IMAGES["zip-1"]
    programmed.report(works=True)
    assert programmed.cloud.look().records[card.name].image is None
    arq = ask(programmed, card, **{ZIP: "required"})
    programmed.let_time_pass()
    assert read(programmed, arq) == ("Bound", None)

    lose(programmed, card)

    assert card.loaded == "zip"
    assert operations.list_operations()[-1].asked_by == operations.RECOVERY
    assert read(programmed, arq) == ("Bound", None)


def test_what_a_guest_forbids_is_not_put_back(programmed: Machine) -> None:
    card = programmed.cards["b"]
    # Somebody else has written it; Placement knows nothing of that yet.
    card.lose()
    card.image = IMAGES["zip-1"]
    programmed.report(works=True)
    arq = ask(programmed, card, **{AES: "forbidden"})
    programmed.let_time_pass()
    assert read(programmed, arq) == ("Bound", None)

    lose(programmed, card)

    assert card.image == ""
    assert operations.RECOVERY not in {each.asked_by for each in operations.list_operations()}
