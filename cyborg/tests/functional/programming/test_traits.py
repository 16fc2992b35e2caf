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


def write_by_hand(programmed: Machine, card: Fpga) -> None:
    """Somebody else has written it; Placement knows nothing of that yet."""
    card.lose()
    card.image = IMAGES["zip-1"]
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

    write_by_hand(programmed, card)

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


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({AES: "required"}, "is required, which goes with what it runs now"),
        ({ZIP: "forbidden"}, "is forbidden, which comes with what"),
    ],
)
def test_a_trait_that_changes_with_the_programming_is_refused(programmed, asked, sentence) -> None:
    with pytest.raises(errors.Invalid, match=sentence):
        ask(programmed, programmed.cards["b"], **{"accel:function_id": "zip"} | asked)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({AES: "required", "accel:function_name": "Zip"}, f"{AES} is required."),
        ({AES: "required", "accel:bitstream_id": IMAGES["zip-1"]}, f"{AES} is required."),
        ({ZIP: "forbidden", "accel:function_name": "Zip"}, f"{ZIP} is forbidden."),
    ],
)
def test_an_image_that_does_not_give_the_traits_is_not_written(programmed, asked, said) -> None:
    """Whoever asked for it was not told, as nobody but a conductor reached Glance."""
    card = programmed.cards["b"]
    arq = ask(programmed, card, **asked)

    programmed.let_time_pass()

    assert card.image == IMAGES["aes-1"]
    state, reason = read(programmed, arq)
    assert state == "BindFailed"
    assert (reason or "").endswith(f"does not give what is asked for: {said.replace(':', ' ')}")
    programmed.come_to_rest()


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
    write_by_hand(programmed, card)
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
    write_by_hand(programmed, card)
    arq = ask(programmed, card, **{AES: "forbidden"})
    programmed.let_time_pass()
    assert read(programmed, arq) == ("Bound", None)

    lose(programmed, card)

    assert card.image == ""
    assert operations.RECOVERY not in {each.asked_by for each in operations.list_operations()}
