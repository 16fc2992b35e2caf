# SPDX-License-Identifier: Apache-2.0
"""An agent that says what it has found."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

_PATIENCE = 60
_AGENT = """
import sys
from cyborg.cmd import agent
from cyborg.agent import service

class Watched(service.Agent):
    def _report(self):
        report = super()._report()
        names = [deployable.name for device in report.devices["pci_driver"]
                 for deployable in device.deployables]
        print("report", *names, flush=True)
        return report

    def _deliver(self, report):
        return True  # nobody is there who could take it

service.Agent = Watched
sys.exit(agent.main(sys.argv[1:]))
"""
_CONFIG = """
[DEFAULT]
host = host-1
transport_url = fake://
[agent]
enabled_drivers = pci_driver
discovery_interval = 86400
report_interval = 86400
"""


@contextlib.contextmanager
def reports(host: Any, folder: pathlib.Path, options: str) -> Iterator[Iterator[list[str]]]:
    """What the agent of a host finds in each pass; it ends well after the block.

    ``options`` begin in its own group.
    """
    config = folder / "cyborg.conf"
    config.write_text(_CONFIG + options)
    command = [sys.executable, "-c", _AGENT, "--config-file", str(config)]
    agent = host.start(*command, stdout=subprocess.PIPE)
    lines = (line.split() for line in agent.stdout)
    yield (words[1:] for words in lines if words[:1] == ["report"])
    agent.terminate()
    assert agent.wait(_PATIENCE) == 0
