# SPDX-License-Identifier: Apache-2.0
"""A handle's way through the agent with ``[agent] cdi_dir``, in a process that sees a host."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any, NamedTuple

from cyborg import rpc
from cyborg.agent import discovery, host_steps, pass_counter
from cyborg.drivers import base, privileged, registry
from cyborg.tests.contract import passes

#: The ids of the handle and of who has it.
HANDLE, ARQ = "11111111-2222-3333-4444-555555555555", "abcdef01-2222-3333-4444-555555555555"
_PATIENCE = 60


class Round(NamedTuple):
    """What the report says of the deployable before, in use, and after; and the file in use.

    ``refused`` is why the handle is not cleaned while its container runs on.
    """

    before: base.Deployable
    used: base.Deployable
    after: base.Deployable
    file: dict[str, Any]
    refused: str


def go(driver: str, text: str, folder: str, more: str = "") -> Round:
    """Prepare and clean the first handle of what the driver finds; ``more`` are agent's options."""
    privileged.context.set_client_mode(False)
    conf = passes.configured(f"{text}\n[agent]\ncdi_dir = {folder}\n{more}", [driver], "host-1")
    drivers = registry.load(conf).drivers
    looking = discovery.Discovery("host-1", drivers, timeout=_PATIENCE)
    endpoint = host_steps.StepEndpoint(conf, drivers, 0, pass_counter.PassCounter(lambda: None))

    def find() -> base.Device:
        findings = endpoint.specifications.noted(looking.run())
        assert findings.errors == {}
        return findings.devices[driver][0]

    device = find()
    (before,) = device.deployables
    handle = before.attach_handles[0]

    def step(action: str, asked_ms: int) -> None:
        asked = rpc.HostStep(
            action=action,
            driver=driver,
            attach_handle_uuid=HANDLE,
            attach_type=handle.attach_type,
            attach_info=handle.attach_info,
            cpid_type=device.control_path.cpid_type,
            cpid_info=device.control_path.cpid_info,
            asked_ms=asked_ms,
            agent_started=0,
            arq_uuid=ARQ,
        )
        endpoint.host_step({}, asked.to_wire(), _PATIENCE)

    step("prepare", 1)
    (path,) = pathlib.Path(folder).glob("*.json")
    file = json.loads(path.read_text())
    (used,) = find().deployables
    refused = ""
    given = dict(each.split("=", 1) for each in file["devices"][0]["containerEdits"]["env"])
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=given):
        try:
            step("clean", 2)
        except rpc.HostStepFailed as exc:
            refused = str(exc)
    step("clean", 3)
    assert not list(pathlib.Path(folder).glob("*.json"))
    (after,) = find().deployables
    return Round(before, used, after, file, refused)
