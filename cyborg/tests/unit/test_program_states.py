# SPDX-License-Identifier: Apache-2.0
"""The table of a program's states has no dead end, and permits nothing else."""

from __future__ import annotations

import importlib.util
import pathlib
from xml.etree import ElementTree

import pytest

from cyborg.db.models import SETTLED, UNMANAGED
from cyborg.programming import states
from cyborg.programming.states import Event

TOOL = pathlib.Path(__file__).parents[3] / "tools/program_states.py"


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


def test_the_documentation_shows_every_change() -> None:
    """If this fails, run tools/program_states.py."""
    spec = importlib.util.spec_from_file_location("program_states", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for name, text in tool.files().items():
        assert (tool.FOLDER / name).read_text() == text
    svg = ElementTree.fromstring(tool.drawing())
    drawn = [each.text for each in svg.iter("{http://www.w3.org/2000/svg}text")]
    changes = [(before, after) for (before, _), after in states.TABLE.items() if before != after]
    assert len(drawn) == len(states.STATES) + len(changes)
    assert set(states.STATES) <= set(drawn)
    assert "\n".join(tool.lines()).count("    - *") == len(states.TABLE)
