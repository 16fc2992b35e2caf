# SPDX-License-Identifier: Apache-2.0
"""A queued operation is taken back, while a conductor carries it out and while others wait."""

from __future__ import annotations

import pytest
import requests

from cyborg import work
from cyborg.arqs import service
from cyborg.db import models
from cyborg.programming import cancellation, operations, program, withdrawal
from cyborg.tests import messages
from cyborg.tests.bound_groups import ask
from cyborg.tests.fpga import Card
from cyborg.tests.programmed_cards import IMAGES
from cyborg.tests.programming_machine import Machine
from cyborg.tests.service import until


def cancel(card: Card, operation: str) -> requests.Response:
    return card.site.ask("DELETE", f"/operations/{operation}", version="2.4")


def test_what_waits_for_glance_is_cancelled_and_what_is_written_is_not(
    glance_line: messages.Wire, single: Card
) -> None:
    image = single.image("aes")
    glance_line.cut()
    operation = single.program(image_uuid=image).json()["uuid"]
    assert cancel(single, operation).status_code == 204
    glance_line.join()

    found = single.ended(operation)

    assert (found["state"], found["error"]) == ("failed", "An administrator has cancelled it.")
    until(lambda: not single.site.work("program"))
    single.site.hang("program")
    # Another one begins at once.
    operation = single.program(image_uuid=image).json()["uuid"]
    until(single.is_writing)

    answer = cancel(single, operation)

    assert answer.status_code == 409
    assert "is writing; only one that has not begun to write can be cancelled" in answer.text
    single.site.obey("program")
    assert single.ended(operation)["state"] == "succeeded"


def test_what_is_withdrawn_is_offered_again(programmed: Machine) -> None:
    card = programmed.cards["b"]
    row = programmed.cloud.row(card)
    programmed.cloud.updates_placement = False
    operations.ask(row.uuid, program.Program(function_id="zip"), "user 1")
    programmed.let_time_pass()
    (reserving,) = operations.list_operations(state=operations.RESERVING)
    assert programmed.cloud.free(card) == 0

    cancellation.cancel(reserving.uuid, "user 2")
    programmed.let_time_pass()

    ended = operations.get_operation(reserving.uuid)
    assert (ended.state, ended.fault) == ("failed", operations.CANCELLED)
    assert programmed.cloud.row(card).program_state == models.LOADED
    assert programmed.cloud.free(card) == 1
    assert card.image == IMAGES["aes-1"]
    programmed.come_to_rest()


def test_nothing_is_written_for_one_that_is_cancelled_while_it_waits_for_placement(
    programmed, monkeypatch
) -> None:
    card = programmed.cards["b"]
    operations.ask(programmed.cloud.row(card).uuid, program.Program(function_id="zip"), "user 1")

    def cancel_it(*_: object) -> None:
        (reserving,) = operations.list_operations(state=operations.RESERVING)
        cancellation.cancel(reserving.uuid, "user 2")

    with monkeypatch.context() as patched:
        patched.setattr(withdrawal, "_await_placement", cancel_it)
        with pytest.raises(work.LeaseLost):
            programmed.let_time_pass()
    programmed.let_time_pass()

    assert card.image == IMAGES["aes-1"]
    programmed.come_to_rest()


def test_nothing_is_written_for_a_cancelled_one_while_its_image_is_found(programmed) -> None:
    """Nor is its image written for the one that follows."""
    card, cloud = programmed.cards["b"], programmed.cloud
    row = cloud.row(card)

    def happen() -> None:
        (queued,) = operations.list_operations(state=operations.QUEUED)
        cancellation.cancel(queued.uuid, "user 1")
        operations.ask(row.uuid, program.Program(image_uuid=IMAGES["aes-2"]), "user 2")

    cloud.while_asked = happen
    operations.ask(row.uuid, program.Program(function_id="zip"), "user 1")

    with pytest.raises(work.LeaseLost):
        programmed.let_time_pass()
    programmed.let_time_pass()

    assert card.image == IMAGES["aes-2"]
    ended = {each.asked_by: each.state for each in operations.list_operations()[-2:]}
    assert ended == {"user 1": "failed", "user 2": "succeeded"}
    programmed.come_to_rest()


def test_the_bind_that_asked_for_it_fails(programmed: Machine) -> None:
    programmed.cloud.finds = False
    card = programmed.cards["b"]
    arq = ask(programmed, card, **{"accel:function_id": "zip"})
    programmed.let_time_pass()
    (queued,) = operations.list_operations(state=operations.QUEUED)

    cancellation.cancel(queued.uuid, "user 1")
    programmed.let_time_pass()

    found = service.get_arq(programmed.cloud.ctx, arq)
    assert found.state == "BindFailed"
    assert str(found.private_reason).endswith(": An administrator has cancelled it.")
    assert card.image == IMAGES["aes-1"]
