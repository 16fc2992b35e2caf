# SPDX-License-Identifier: Apache-2.0
"""An agent that says what it has found."""

from __future__ import annotations

AGENT = """
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
