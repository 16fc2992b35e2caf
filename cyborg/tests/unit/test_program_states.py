# SPDX-License-Identifier: Apache-2.0
"""The table of a program's states has no dead end, and permits nothing else."""

from __future__ import annotations

import pytest

from cyborg.db.models import SETTLED, UNMANAGED
from cyborg.programming import states
from cyborg.programming.states import Event


def reachable(start: str) -> set[str]:
    """The states that a program may come to from one state."""
    found, left = {start}, [start]
    while left:
        state = left.pop()
        new = {after for (before, _), after in states.TABLE.items() if before == state} - found
        found |= new
        left += new
    return found


def test_the_table_knows_every_state_and_every_event() -> None:
    assert {before for before, _ in states.TABLE} == set(states.STATES)
    assert set(states.TABLE.values()) == set(states.STATES)
    assert {event for _, event in states.TABLE} == set(Event)


def test_every_state_can_be_reached_from_the_first() -> None:
    assert reachable(UNMANAGED) == set(states.STATES)


@pytest.mark.parametrize("state", states.STATES)
def test_every_state_has_a_way_to_each_settled_one(state: str) -> None:
    assert reachable(state) >= SETTLED


@pytest.mark.parametrize("state", states.STATES)
def test_what_is_not_in_the_table_cannot_happen(state: str) -> None:
    for event in Event:
        if (state, event) in states.TABLE:
            assert states.next_state(state, event) == states.TABLE[state, event]
        else:
            with pytest.raises(AssertionError, match=f"{event.name} cannot happen to .* {state}"):
                states.next_state(state, event)


def test_what_settles_may_turn_out_not_to_be_programmable() -> None:
    for state in SETTLED:
        assert states.next_state(state, Event.NOT_PROGRAMMABLE) == UNMANAGED
