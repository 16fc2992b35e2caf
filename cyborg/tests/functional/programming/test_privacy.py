# SPDX-License-Identifier: Apache-2.0
"""What projects are told of programming, which others may have asked for."""

from __future__ import annotations

from typing import Any

import pytest
import webob
from oslo_policy import opts

from cyborg import work
from cyborg.api import app
from cyborg.arqs import service
from cyborg.programming import operations
from cyborg.tests.programmed_host import Fpgas
from cyborg.tests.programming_machine import Machine

#: Who asks, and a rule of the operator's; whether such a caller is told who had it programmed.
CALLERS = [
    ("admin", None, True),
    ("manager", None, False),
    ("manager", "cyborg:operation:get_all", True),
]


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
    assert waits.consumer_uuid == operation.consumer_uuid
    (failed,) = (arq for arq in found if arq.state == "BindFailed")
    assert failed.private_reason == (
        f"Deployable {operation.deployable_uuid} cannot be programmed: "
        "it is being programmed with something else."
    )


@pytest.mark.parametrize(("role", "rule", "is_told"), CALLERS)
def test_who_sees_no_operations_is_not_told_who_had_it_programmed(
    fpgas, conf, tmp_path, role, rule, is_told
) -> None:
    machine = Machine(fpgas)
    machine.report(works=True)
    machine.boot(boots=[("b", "aes", False)], works=True)
    opts.set_defaults(conf)
    path = tmp_path / "rules.yaml"
    path.write_text(f'"{rule}": "role:{role}"' if rule else "{}")
    conf.set_override("policy_file", str(path), group="oslo_policy")
    conf.set_override("auth_strategy", "noauth", group="api")
    application = app.load(conf)

    def get(path: str) -> Any:
        headers = {"OpenStack-API-Version": "accelerator 2.4", "X-Roles": role}
        request = webob.Request.blank(f"/v2/{path}", headers=headers | {"X-Project-Id": "p"})
        return request.get_response(application).json

    listed = get("deployables")["deployables"]
    (shown,) = (each for each in listed if each["program"]["programmed_at"])
    guest = machine.guests[0].uuid
    assert shown["program"]["programmed_by"] == (f"instance {guest}" if is_told else None)
    assert get(f"deployables/{shown['uuid']}") == shown
    assert (guest in str(shown)) == is_told
    assert ("operations" in get("operations")) == is_told
