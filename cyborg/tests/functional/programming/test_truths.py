# SPDX-License-Identifier: Apache-2.0
"""No guest ever sees its function change, and no provider offers what it cannot give.

Boots, deletions, programs and losses of programs come in any order that Hypothesis thinks of, while
conductors are killed, agents fail, end in the middle of a write or fall silent, reports are late
and Placement's answers are lost. What is asked of the hardware is looked at in the moment when it
is asked. Of cards with layouts each layout has handles of its own, of another size and number, and
none changes under a guest.

``CYBORG_TEST_EXAMPLES`` runs that many histories, other ones each time, instead of a few fixed.
"""

from __future__ import annotations

import os

import hypothesis
import pytest
from hypothesis import stateful

from cyborg.tests.programmed_host import Fpgas
from cyborg.tests.programming_machine import Machine

pytestmark = pytest.mark.slow


@pytest.mark.every_database
@pytest.mark.parametrize(
    "modes",
    [("single-program", "dynamic", "dynamic"), ("layout", "dynamic", "layout")],
    ids=["images", "layouts"],
)
def test_in_any_order(fpgas: Fpgas, modes: tuple[str, str, str]) -> None:
    fpgas.modes = modes

    class History(Machine):
        def __init__(self) -> None:
            super().__init__(fpgas)

    examples = os.environ.get("CYBORG_TEST_EXAMPLES")
    stateful.run_state_machine_as_test(
        History,
        settings=hypothesis.settings(
            max_examples=int(examples or (8 if fpgas.on_sqlite else 4)),
            stateful_step_count=30,
            derandomize=examples is None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )


def test_parts_of_a_layout_are_not_offered_with_another(fpgas: Fpgas) -> None:
    """There are fewer of them afterwards, and others, as the next report says."""
    fpgas.modes = ("layout", "dynamic", "layout")
    machine = Machine(fpgas)
    machine.report(works=True)
    machine.want_slots("zip", free=3, devices=1, works=True)
    machine.let_time_pass()
    machine.report(works=True)
    (card,) = (each for each in machine.cards.values() if each.loaded == "zip")
    assert fpgas.free(card) == card.size_with("zip") == 3

    machine.program(letter=card.letter, program="aes", works=True)

    machine.look()
    assert (card.loaded, fpgas.free(card)) == ("aes", 0)
    machine.report(works=True)
    machine.boot(boots=[(card.letter, "aes", True)], works=True)
    machine.look()
    assert [guest.card for guest in machine.guests] == [card]
    assert fpgas.free(card) == card.size_with("aes") == 2
    machine.come_to_rest()


@pytest.mark.parametrize("claims", [True, False], ids=["claimed", "not claimed"])
def test_no_layout_is_changed_under_a_guest(fpgas: Fpgas, *, claims: bool) -> None:
    """Of one who has not asked Placement only the ARQs tell."""
    fpgas.modes = ("layout", "dynamic", "layout")
    machine = Machine(fpgas)
    machine.begin(programs=["zip"], boots=[("a", "zip", claims)])
    card = machine.cards["a"]
    assert [guest.card for guest in machine.guests] == [card]

    machine.ask_for_another(number=0, works=True)

    machine.look()
    assert card.loaded == "zip"
    machine.come_to_rest()
