# SPDX-License-Identifier: Apache-2.0
"""Who asks for what an operation is about to write joins it, whatever either of them names."""

from __future__ import annotations

import pytest

from cyborg import errors
from cyborg.programming import operations, program
from cyborg.programming.program import Program
from cyborg.tests.functional.test_programming_traits import (  # noqa: F401
    ask,
    machine,
    read,
)
from cyborg.tests.programmed_cards import IMAGES
from cyborg.tests.programming_machine import Machine

ZIP = IMAGES["zip-1"]
NAMES = {
    "image": Program(image_uuid=ZIP),
    "image's name": Program(image_name="zip"),
    "function": Program(function_id="zip"),
    "function's name": Program(function_name="Zip"),
}
GROUPS = [
    {"accel:bitstream_id": ZIP},
    {"accel:function_id": "zip"},
    {"accel:function_name": "Zip"},
]


def ended() -> list[tuple[str, str]]:
    """Who asked for the operations since the cards were first programmed, and how they ended."""
    return [(each.asked_by, each.state) for each in operations.list_operations()[2:]]


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("second", NAMES)
def test_an_operator_joins_what_is_being_written(
    machine: Machine,  # noqa: F811
    first: str,
    second: str,
) -> None:
    card = machine.cards["b"]
    row = machine.cloud.row(card)
    begun = operations.ask(row.uuid, NAMES[first], "user 1")
    joined: list[str] = []

    def happen() -> None:
        joined.append(operations.ask(row.uuid, NAMES[second], "user 2").uuid)
        with pytest.raises(errors.Conflict, match="is being programmed with"):
            operations.ask(row.uuid, program.Program(image_name="aes"), "user 3")

    machine.cloud.meanwhile = happen
    machine.let_time_pass()

    assert joined == [begun.uuid]
    assert ended() == [("user 1", "succeeded")]


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("group", GROUPS)
def test_a_bind_joins_what_only_glance_knows(
    machine: Machine,  # noqa: F811
    first: str,
    group: dict[str, str],
) -> None:
    card = machine.cards["b"]
    machine.cloud.finds = False
    operations.ask(machine.cloud.row(card).uuid, NAMES[first], "user 1")
    arq = ask(machine, card, **group)
    machine.let_time_pass()
    assert read(machine, arq)[0] == "BindStarted"

    machine.cloud.finds = True
    machine.let_time_pass()
    machine.let_time_pass()

    assert read(machine, arq) == ("Bound", None)
    assert ended() == [("user 1", "succeeded")]


def test_a_bind_for_something_else_does_not_wait_for_it(machine: Machine) -> None:  # noqa: F811
    card = machine.cards["b"]
    machine.cloud.finds = False
    operations.ask(machine.cloud.row(card).uuid, NAMES["image"], "user 1")
    arq = ask(machine, card, **{"accel:bitstream_id": IMAGES["aes-2"]})

    machine.let_time_pass()

    state, reason = read(machine, arq)
    assert state == "BindFailed"
    assert str(reason).endswith("it is being programmed with something else.")
