# SPDX-License-Identifier: Apache-2.0
"""What projects are told of programming, which others may have asked for."""

from __future__ import annotations

from cyborg import work
from cyborg.arqs import service
from cyborg.programming import operations
from cyborg.tests.programmed_host import Fpgas
from cyborg.tests.programming_machine import Machine


def test_a_bind_does_not_tell_what_is_written_for_another(fpgas: Fpgas) -> None:
    machine = Machine(fpgas)
    machine.report(works=True)
    for profile in ("aes", "zip"):
        machine.boot(boots=[("c", profile, False)], works=False)
        while fpgas.do_one([work.BIND, work.HOST_STEP]):
            pass

    (operation,) = operations.list_operations()
    found = [service.get_arq(fpgas.ctx, guest.arq) for guest in machine.guests]

    (waits,) = (arq for arq in found if arq.state == "BindStarted")
    assert waits.instance_uuid == operation.instance_uuid
    (failed,) = (arq for arq in found if arq.state == "BindFailed")
    assert failed.state_reason == (
        f"Deployable {operation.deployable_uuid} cannot be programmed: "
        "it is being programmed with something else."
    )
