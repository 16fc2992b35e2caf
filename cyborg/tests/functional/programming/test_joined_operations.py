# SPDX-License-Identifier: Apache-2.0
"""Who asks for what an operation is about to write joins it, whatever either of them names."""

from __future__ import annotations

import pytest

from cyborg.arqs import binding, service
from cyborg.common import errors
from cyborg.handles import release
from cyborg.programming import operations, program
from cyborg.programming.program import Program
from cyborg.tests.boots import target
from cyborg.tests.functional.programming.test_traits import (  # noqa: F401
    ask,
    machine,
    read,
)
from cyborg.tests.programmed_cards import IMAGES, Fpga
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


def begin(machine: Machine, state: str) -> None:  # noqa: F811
    """Bring what was asked for last to that state, from which it does not get on alone."""
    machine.cloud.finds, machine.cloud.updates_placement = state != "queued", False
    while machine.cloud.do_one():
        pass
    assert operations.list_operations()[-1].state == state


def join(machine: Machine, card: Fpga) -> None:  # noqa: F811
    """An operator asks for the same, again and again."""
    for _ in range(2):
        asked = operations.ask(machine.cloud.row(card).uuid, NAMES["image"], "user 2")
        machine.cloud.ledger.wanted.add(asked.uuid)


def leave(machine: Machine, arq: str) -> str:  # noqa: F811
    """The guest's instance is deleted; Nova gives its allocation back a little later."""
    instance = str(service.get_arq(machine.cloud.ctx, arq).consumer_uuid)
    release.delete_instance_arqs(machine.cloud.ctx, instance)
    return instance


def go_on(machine: Machine, gone: str) -> None:  # noqa: F811
    """Whatever was away is back, one after the other, and Nova gives back what it had."""
    machine.cloud.finds = machine.cloud.updates_placement = True
    # Its handle cannot be cleaned yet.
    machine.cloud.agent = "is away"
    machine.let_time_pass()
    machine.cloud.placement.release(gone)
    machine.let_time_pass()
    machine.cloud.agent = "works"
    for _ in range(4):
        machine.let_time_pass()


@pytest.mark.parametrize("state", ["queued", "reserving"])
@pytest.mark.parametrize("letter", "bc")
def test_an_operator_who_has_joined_a_guest_is_served_when_that_leaves(
    machine: Machine,  # noqa: F811
    letter: str,
    state: str,
) -> None:
    card = machine.cards[letter]
    arq = ask(machine, card, **{"accel:bitstream_id": ZIP})
    begin(machine, state)
    join(machine, card)

    gone = leave(machine, arq)
    go_on(machine, gone)

    assert ended() == [(f"instance {gone}", "succeeded")]
    assert card.image == ZIP
    (operation,) = operations.list_operations()[2:]
    said = [entry["text"] for entry in operation.history]
    assert said.count("Asked for by user 2 too.") == 1
    assert machine.cloud.free(card) == card.handles


@pytest.mark.parametrize("state", ["queued", "reserving"])
@pytest.mark.parametrize("leaves", ["who has asked", "who has joined"])
def test_a_guest_that_shares_an_operation_is_served_when_the_other_leaves(
    machine: Machine,  # noqa: F811
    leaves: str,
    state: str,
) -> None:
    """Its handle must be cleaned first, and it has its allocation a little longer."""
    card = machine.cards["c"]
    machine.cloud.finds = False
    arqs = [ask(machine, card, **{"accel:bitstream_id": ZIP}) for _ in range(2)]
    begin(machine, state)
    staying, leaving = arqs if leaves == "who has joined" else reversed(arqs)

    go_on(machine, leave(machine, leaving))

    assert read(machine, staying) == ("Bound", None)
    assert [end for _, end in ended()] == ["succeeded"]
    assert card.image == ZIP


def test_who_has_joined_does_not_wait_for_what_the_guest_keeps(
    machine: Machine,  # noqa: F811
) -> None:
    """It was built anew, and given what the card runs."""
    card, cloud = machine.cards["c"], machine.cloud
    cloud.finds = False
    arq = ask(machine, card, **{"accel:bitstream_id": ZIP})
    begin(machine, "queued")
    join(machine, card)
    instance = leave(machine, arq)
    (other,) = service.create(cloud.ctx, "any")
    at = target(instance, device_rp_uuid=card.provider)
    binding.request_changes(cloud.ctx, {other.uuid: at}, [])
    machine.let_time_pass()
    assert read(machine, other.uuid) == ("Bound", None)
    cloud.finds = True

    machine.let_time_pass()

    assert ended() == [(f"instance {instance}", "failed")]
    assert card.image == IMAGES["aes-1"]


def test_a_bind_for_something_else_does_not_wait_for_it(machine: Machine) -> None:  # noqa: F811
    card = machine.cards["b"]
    machine.cloud.finds = False
    operations.ask(machine.cloud.row(card).uuid, NAMES["image"], "user 1")
    arq = ask(machine, card, **{"accel:bitstream_id": IMAGES["aes-2"]})

    machine.let_time_pass()

    state, reason = read(machine, arq)
    assert state == "BindFailed"
    assert str(reason).endswith("it is being programmed with something else.")
