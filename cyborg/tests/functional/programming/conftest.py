# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of programming."""

from __future__ import annotations

import pytest

from cyborg.tests.programmed_cards import IMAGES, Fpga
from cyborg.tests.programmed_host import Fpgas
from cyborg.tests.programming_machine import Machine


@pytest.fixture
def machine(fpgas: Fpgas) -> Machine:
    """The host of the histories, whose agent has reported."""
    machine = Machine(fpgas)
    machine.report(works=True)
    return machine


@pytest.fixture
def shown(machine: Machine) -> Fpga:
    """A card of which only the hardware says what it runs, as nobody knows who wrote it."""
    card = machine.cards["a"]
    card.image = IMAGES["aes-1"]
    machine.report(works=True)
    return card


@pytest.fixture
def programmed(fpgas: Fpgas) -> Machine:
    """A host two of whose cards run a function."""
    machine = Machine(fpgas)
    machine.report(works=True)
    for letter in "bc":
        machine.program(letter=letter, program="aes", works=True)
    return machine
