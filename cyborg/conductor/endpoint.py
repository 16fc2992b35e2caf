# SPDX-License-Identifier: Apache-2.0
"""The RPC methods of the conductor."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from oslo_config import cfg

from cyborg import metrics, process, rpc
from cyborg.common import errors
from cyborg.handles import host_steps
from cyborg.inventory import acceptance
from cyborg.inventory import report as inventory_report
from cyborg.programming import write_permits

#: Reports of one host that are taken in at the same time. More would only wait for each other, in
#: the threads that other hosts need.
_AT_ONCE = 2


class ConductorEndpoint:
    """The methods of topic ``cyborg-conductor``."""

    def __init__(self, conf: cfg.ConfigOpts, kick: Callable[[], None]) -> None:
        self._conf = conf
        self._kick = kick
        self._lock = threading.Lock()
        self._reports = collections.Counter[str]()

    def report(self, context: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Apply the report of one host."""
        with metrics.observed(metrics.REPORT_SECONDS, outcome="failed") as labels:
            try:
                labels["outcome"] = self._apply(report)
            except acceptance.ReportRefused:
                labels["outcome"] = inventory_report.REFUSED
                raise
        if labels["outcome"] == inventory_report.APPLIED:
            self._kick()
            # A report of hundreds of devices takes some ten MiB.
            process.free_memory()

    def _apply(self, report: Mapping[str, Any]) -> str:
        said = inventory_report.read(report, self._conf.conductor.max_report_bytes)
        with self._one_of_few(said.host):
            return inventory_report.apply_report(
                said,
                self._conf.conductor.max_gone_share,
                self._conf.conductor.max_report_devices,
                self._conf.conductor.keep_vanished,
            )

    def report_unchanged(self, context: Mapping[str, Any], report: Mapping[str, Any]) -> bool:
        """Note that a host reports what is stored; False if something else is stored."""
        with metrics.observed(metrics.REPORT_SECONDS, outcome="failed") as labels:
            said = rpc.UnchangedReport.from_wire(report)
            with self._one_of_few(said.host):
                stored = inventory_report.note_unchanged(said)
            labels["outcome"] = (
                inventory_report.UNCHANGED if stored else inventory_report.UNKNOWN
            )
        return stored

    @contextlib.contextmanager
    def _one_of_few(self, host: str) -> Iterator[None]:
        """Take in a report of the host.

        :raises Conflict: others of it are being taken in
        """
        with self._lock:
            if self._reports[host] == _AT_ONCE:
                raise errors.Conflict(
                    f"{_AT_ONCE} reports of host {host} are being stored; send the next one later."
                )
            self._reports[host] += 1
        try:
            yield
        finally:
            with self._lock:
                self._reports -= collections.Counter([host])

    def permit_write(
        self, context: Mapping[str, Any], request: Mapping[str, Any]
    ) -> rpc.WritePermit:
        """Say whether a host may write a deployable now."""
        return write_permits.permit_write(rpc.WriteRequest.from_wire(request))

    def held_handles(
        self, context: Mapping[str, Any], request: Mapping[str, Any]
    ) -> dict[str, str]:
        """The ARQ of each attach handle of a host that is in use, by the handle's uuid."""
        asked = rpc.HeldRequest.from_wire(request)
        return host_steps.held_on(asked.host, by_place=asked.by_place)

    def kick(self, context: Mapping[str, Any]) -> None:
        """Look for work now."""
        self._kick()
