# SPDX-License-Identifier: Apache-2.0
"""The transition table says what design and contract say."""

from cyborg.arqs import states


def test_predecessors_are_the_documented_ones() -> None:
    assert states.predecessors(states.BIND_STARTED) == {states.INITIAL, states.UNBOUND}
    assert states.predecessors(states.BOUND) == {states.BIND_STARTED}
    assert states.predecessors(states.BIND_FAILED) == {states.BIND_STARTED}
    assert states.predecessors(states.UNBOUND) == states.ALL - {states.DELETING}
    assert states.predecessors(states.DELETING) == states.ALL


def test_every_state_is_in_the_table_and_nothing_leaves_deleting() -> None:
    assert set(states.TRANSITIONS) == states.ALL
    assert states.TRANSITIONS[states.DELETING] == {states.DELETING}
