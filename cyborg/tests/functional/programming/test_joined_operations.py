# SPDX-License-Identifier: Apache-2.0
"""Who asks for what an operation is about to write joins it, whatever either of them names."""

from __future__ import annotations

import pytest

from cyborg.common import errors
from cyborg.programming import operations, program
from cyborg.programming.program import Program
from cyborg.tests import boots
from cyborg.tests.bound_groups import ask, leave, read
from cyborg.tests.programmed_cards import IMAGES, Fpga
from cyborg.tests.programming_machine import Machine

pytestmark = pytest.mark.slow

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
def test_an_operator_joins_what_is_being_written(programmed, first) -> None:
    card = programmed.cards["b"]
    row = programmed.cloud.row(card)
    begun = operations.ask(row.uuid, NAMES[first], "user 1")
    joined: dict[str, str] = {}

    def happen() -> None:
        for name, what in NAMES.items():
            joined[name] = operations.ask(row.uuid, what, "user 2").uuid
        with pytest.raises(errors.Conflict, match="is being programmed with"):
            operations.ask(row.uuid, program.Program(image_name="aes"), "user 3")

    programmed.cloud.meanwhile = happen
    programmed.let_time_pass()

    assert joined == dict.fromkeys(NAMES, begun.uuid)
    assert ended() == [("user 1", "succeeded")]


@pytest.mark.parametrize("first", NAMES)
def test_binds_join_what_only_glance_knows(programmed, first) -> None:
    card = programmed.cards["c"]
    programmed.cloud.finds = False
    operations.ask(programmed.cloud.row(card).uuid, NAMES[first], "user 1")
    arqs = [ask(programmed, card, **group) for group in GROUPS]
    programmed.let_time_pass()
    assert [read(programmed, arq)[0] for arq in arqs] == ["BindStarted"] * len(GROUPS)

    programmed.cloud.finds = True
    programmed.let_time_pass()
    programmed.let_time_pass()

    assert [read(programmed, arq) for arq in arqs] == [("Bound", None)] * len(GROUPS)
    assert ended() == [("user 1", "succeeded")]


def begin(programmed: Machine, state: str) -> None:
    """Bring what was asked for last to that state, from which it does not get on alone."""
    programmed.cloud.finds, programmed.cloud.updates_placement = state != "queued", False
    while programmed.cloud.do_one():
        pass
    assert operations.list_operations()[-1].state == state


def join(programmed: Machine, card: Fpga) -> None:
    """An operator asks for the same, again and again."""
    for _ in range(2):
        asked = operations.ask(programmed.cloud.row(card).uuid, NAMES["image"], "user 2")
        programmed.cloud.ledger.wanted.add(asked.uuid)


def go_on(programmed: Machine, gone: str) -> None:
    """Whatever was away is back, one after the other, and Nova gives back what it had."""
    programmed.cloud.finds = programmed.cloud.updates_placement = True
    # Its handle cannot be cleaned yet.
    programmed.cloud.agent = "is away"
    programmed.let_time_pass()
    programmed.cloud.placement.release(gone)
    programmed.let_time_pass()
    programmed.cloud.agent = "works"
    for _ in range(4):
        programmed.let_time_pass()


@pytest.mark.parametrize("state", ["queued", "reserving"])
@pytest.mark.parametrize("letter", "bc")
def test_an_operator_who_has_joined_a_guest_is_served_when_that_leaves(
    programmed, letter, state
) -> None:
    card = programmed.cards[letter]
    arq = ask(programmed, card, **{"accel:bitstream_id": ZIP})
    begin(programmed, state)
    join(programmed, card)

    gone = leave(programmed, arq)
    go_on(programmed, gone)

    assert ended() == [(f"instance {gone}", "succeeded")]
    assert card.image == ZIP
    (operation,) = operations.list_operations()[2:]
    said = [entry["text"] for entry in operation.history]
    assert said.count("Asked for by user 2 too.") == 1
    assert programmed.cloud.free(card) == card.handles


@pytest.mark.parametrize("state", ["queued", "reserving"])
@pytest.mark.parametrize("leaves", ["who has asked", "who has joined"])
def test_a_guest_that_shares_an_operation_is_served_when_the_other_leaves(
    programmed, leaves, state
) -> None:
    """Its handle must be cleaned first, and it has its allocation a little longer."""
    card = programmed.cards["c"]
    programmed.cloud.finds = False
    arqs = [ask(programmed, card, **{"accel:bitstream_id": ZIP}) for _ in range(2)]
    begin(programmed, state)
    staying, leaving = arqs if leaves == "who has joined" else reversed(arqs)

    go_on(programmed, leave(programmed, leaving))

    assert read(programmed, staying) == ("Bound", None)
    assert [end for _, end in ended()] == ["succeeded"]
    assert card.image == ZIP


def test_who_has_joined_does_not_wait_for_what_the_guest_keeps(programmed) -> None:
    """It was built anew, and given what the card runs."""
    card, cloud = programmed.cards["c"], programmed.cloud
    cloud.finds = False
    arq = ask(programmed, card, **{"accel:bitstream_id": ZIP})
    begin(programmed, "queued")
    join(programmed, card)
    instance = leave(programmed, arq)
    (other,) = boots.arqs(cloud.ctx, group={"resources:FPGA": "1"})
    boots.bind(cloud.ctx, [other], instance, device_rp_uuid=card.provider)
    programmed.let_time_pass()
    assert read(programmed, other) == ("Bound", None)
    cloud.finds = True

    programmed.let_time_pass()

    assert ended() == [(f"instance {instance}", "failed")]
    assert card.image == IMAGES["aes-1"]


def test_a_bind_for_something_else_does_not_wait_for_it(programmed: Machine) -> None:
    card = programmed.cards["b"]
    programmed.cloud.finds = False
    operations.ask(programmed.cloud.row(card).uuid, NAMES["image"], "user 1")
    arq = ask(programmed, card, **{"accel:bitstream_id": IMAGES["aes-2"]})

    programmed.let_time_pass()

    state, reason = read(programmed, arq)
    assert state == "BindFailed"
    assert str(reason).endswith("it is being programmed with something else.")
