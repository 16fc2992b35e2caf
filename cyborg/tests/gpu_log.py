# SPDX-License-Identifier: Apache-2.0
"""What the kernel's log says of GPUs, and what becomes of their health."""

from __future__ import annotations

import pathlib

from cyborg.agent import discovery
from cyborg.drivers import kernel_log, pci, registry
from cyborg.tests.contract import passes

TOLD = "12,9999,{time},-;cyborg: {slot} is healthy\n"
XIDS = "[gpu_devices]\nunhealthy_xids = 79, 48\n"


def healths(driver: str, text: str, log: str, lines: list[str]) -> list[dict[str, str | None]]:
    """The health of each card after each of those lines is added to the kernel's log."""
    kernel_log.PATH = log
    loaded = registry.load(passes.configured(text, [driver], "host-1"))
    agent = discovery.Discovery("host-1", loaded.drivers, timeout=60)
    found = []
    for line in lines:
        with pathlib.Path(log).open("a", encoding="utf-8") as file:
            file.write(line)
        findings = agent.run()
        agent.remember()
        assert findings.errors == {}
        found.append(
            {
                pci.join(device.control_path.cpid_info): device.unhealthy
                for device in findings.devices[driver]
            }
        )
    return found
