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


@pytest.mark.parametrize(
    ("letter", "trait", "asked", "change"),
    [
        ("b", AES, "required", lose),
        ("c", AES, "required", lose),
        ("b", ZIP, "forbidden", write_by_hand),
    ],
)
def test_nobody_is_bound_to_what_has_lost_or_got_the_trait(
    programmed, letter, trait, asked, change
) -> None:
    card = programmed.cards[letter]
    arq = ask(programmed, card, **{trait: asked})

    change(programmed, card)

    said = f"Provider {card.provider} changed: {trait.replace(':', ' ')} is {asked}."
    assert read(programmed, arq) == ("BindFailed", said)
    programmed.come_to_rest()


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


def test_a_trait_that_changes_with_the_programming_is_refused(programmed: Machine) -> None:
    for trait, asked, sentence in (
        (AES, "required", "is required, which goes with what it runs now"),
        (ZIP, "forbidden", "is forbidden, which comes with what"),
    ):
        with pytest.raises(errors.Invalid, match=sentence):
            ask(programmed, programmed.cards["c"], **{"accel:function_id": "zip", trait: asked})


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


def test_what_a_guest_forbids_is_not_put_back(programmed: Machine) -> None:
    card = programmed.cards["b"]
    write_by_hand(programmed, card)
    arq = ask(programmed, card, **{AES: "forbidden"})
    programmed.let_time_pass()
    assert read(programmed, arq) == ("Bound", None)

    lose(programmed, card)

    assert card.image == ""
    assert operations.RECOVERY not in {each.asked_by for each in operations.list_operations()}
