# SPDX-License-Identifier: Apache-2.0
"""A conductor that keeps what agents say to it."""

from __future__ import annotations

import dataclasses
import queue
from collections.abc import Callable
from typing import Any

from cyborg import rpc

PATIENCE = 180


class Conductor:
    """Takes reports, after refusing as many as it is told to."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        #: Every report, whether it came whole or as a digest.
        self.reports: queue.Queue[rpc.HostReport] = queue.Queue()
        self.whole = 0
        self.stored: rpc.HostReport | None = None
        self.requests: list[rpc.WriteRequest] = []
        #: What it says to each.
        self.permit = rpc.WritePermit(seconds=PATIENCE, refused=None)
        self.fault: Exception | None = None
        self.while_asked: Callable[[], object] = lambda: None

    def report(self, context: dict[str, Any], report: dict[str, Any]) -> None:
        if self.fault is not None:
            raise self.fault
        if self.refusals:
            self.refusals -= 1
            raise rpc.ReportFailed("the database is down")
        self.whole += 1
        self.stored = rpc.HostReport.from_wire(report)
        self.reports.put(self.stored)

    def report_unchanged(self, context: dict[str, Any], report: dict[str, Any]) -> bool:
        said = rpc.UnchangedReport.from_wire(report)
        if self.stored is None or self.stored.digest() != said.digest:
            return False
        same = dataclasses.replace(self.stored, readings=said.readings)
        self.reports.put(dataclasses.replace(same, started=said.started, counter=said.counter))
        return True

    def kick(self, context: dict[str, Any]) -> None:
        raise AssertionError("an agent has nothing to kick a conductor for")

    def held_handles(self, context: dict[str, Any], request: dict[str, Any]) -> dict[str, str]:
        raise AssertionError("an agent without files has nothing to compare")

    def permit_write(self, context: dict[str, Any], request: dict[str, Any]) -> rpc.WritePermit:
        self.requests.append(rpc.WriteRequest.from_wire(request))
        self.while_asked()
        if self.fault is not None:
            raise self.fault
        return self.permit
