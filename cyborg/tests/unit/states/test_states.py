# SPDX-License-Identifier: Apache-2.0
"""The transition table says what design and contract say."""

from cyborg.db import models
from cyborg.states import arq_states


def test_predecessors_are_the_documented_ones() -> None:
    assert arq_states.predecessors(models.BIND_STARTED) == {models.INITIAL, models.UNBOUND}
    assert arq_states.predecessors(models.BOUND) == {models.BIND_STARTED}
    assert arq_states.predecessors(models.BIND_FAILED) == {models.BIND_STARTED}
    assert arq_states.predecessors(models.UNBOUND) == arq_states.ALL
    assert models.DELETING not in arq_states.ALL
