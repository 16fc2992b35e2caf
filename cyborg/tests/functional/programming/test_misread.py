# SPDX-License-Identifier: Apache-2.0
"""What a report misread under a guest is not written, whatever kept it from that so far."""

from __future__ import annotations

import dataclasses

import pytest

from cyborg import work
from cyborg.db import models
from cyborg.drivers import base
from cyborg.peers import glance
from cyborg.programming import operations
from cyborg.tests.programmed_cards import IMAGES, Fpga
from cyborg.tests.programming_machine import Machine
from cyborg.tests.recoveries import find_none, recoveries


@pytest.mark.parametrize("letter", "bc")
def test_after_the_host_has_refused(machine: Machine, letter: str) -> None:
    """It could not read the image; later it could."""
    machine.boot(boots=[(letter, "aes", False)], works=True)
    machine.cards[letter].misread = True
    machine.cloud.agent = "fails at the start"
    machine.report(works=True)
    assert recoveries() == [("reserving", "it cannot be read")]

    machine.report(works=False)
    machine.cloud.agent = "works"
    machine.let_time_pass()

    assert recoveries() == [("succeeded", None)]
    said = [entry["text"] for entry in operations.list_operations()[-1].history]
    assert said[-1] == "The hardware shows it again; nothing was written."


def test_after_there_was_no_image(machine, shown, monkeypatch) -> None:
    """Glance has one now, a newer one than that of the guest; Placement is not told so far."""
    machine.boot(boots=[("a", "aes", False)], works=True)
    machine.cloud.newest["aes"] = IMAGES["aes-2"]

    with monkeypatch.context() as nothing:
        nothing.setattr(glance, "find_image", find_none)
        shown.misread = True
        machine.cloud.updates_placement = False
        machine.report(works=False)
        machine.cloud.do_one([work.PROGRAM])
    assert recoveries() == [("queued", "There is none")]
    machine.cloud.let_time_pass()
    while machine.cloud.do_one([work.PROGRAM]):
        pass
    assert recoveries() == [("reserving", "There is none")]

    machine.report(works=False)
    machine.cloud.updates_placement = True
    machine.let_time_pass()

    assert recoveries() == [("succeeded", None)]
    assert shown.image == IMAGES["aes-1"]


def test_not_after_it_was_written_in_vain(machine, monkeypatch) -> None:
    """The card leaves the bus then, and comes back as one that cannot show what it runs."""
    machine.boot(boots=[("b", "aes", False)], works=True)
    card = machine.cards["b"]
    card.misread = True
    machine.cloud.agent = "fails"
    machine.cloud.meanwhile = lambda: machine.report(works=False)
    machine.report(works=True)
    assert recoveries() == [("reserving", "it cannot be written")]
    assert card.image == ""
    del machine.cards["b"]
    machine.report(works=False)
    machine.cloud.let_time_pass()
    while machine.cloud.do_one():
        pass
    assert machine.cloud.row(card).program_state == models.LOST
    machine.cards["b"] = card
    look = Fpga.device

    def device(fpga: Fpga) -> base.Device:
        found = look(fpga)
        (part,) = found.deployables
        return dataclasses.replace(found, deployables=(dataclasses.replace(part, function=None),))

    monkeypatch.setattr(Fpga, "device", device)
    machine.cloud.agent = "works"

    machine.report(works=True)

    assert [state for state, _ in recoveries()] == ["failed", "succeeded"]
    assert card.image == machine.guests[0].got
