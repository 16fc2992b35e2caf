# SPDX-License-Identifier: Apache-2.0
"""Leave to write, and what reports may say of devices that are being written.

An order may have ended while its message was in a queue, or while the agent was stopped or waited
for an image. By then the device may be a guest's. So a conductor is asked right before the first
byte, and its permit is short. Its term is counted from before the question, by this host's clock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Iterator

from oslo_config import cfg

from cyborg import rpc
from cyborg.agent import pass_counter
from cyborg.drivers import base, permit_clock


class NotWritten(rpc.ProgramFailed):
    """A conductor does not permit the write."""


class Writes:
    """The writes of this agent."""

    def __init__(self, conf: cfg.ConfigOpts, counter: pass_counter.PassCounter) -> None:
        self._conf = conf
        self._counter = counter
        self._lock = threading.Lock()
        #: By the control path of each device that was written, or may be now: the last pass that
        #: may have seen it as it was before, or in the middle.
        self._doubtful: dict[str, float] = {}

    @contextlib.contextmanager
    def permitted(
        self, step: rpc.ProgramStep, target: base.ProgramTarget
    ) -> Iterator[base.ProgramTarget]:
        """The target with the time until which a block may begin to write it.

        :raises NotWritten: a conductor does not permit it
        :raises HostStepRunning: no conductor is known to permit it
        """
        path, is_written = str(target.control_path), False
        with self._lock:
            before = self._doubtful.get(path, -math.inf)
            # Before the question: a report that is sent after the answer says so in any case.
            self._doubtful[path] = math.inf
        try:
            permit = dataclasses.replace(target, until=self._ask(step))
            is_written = True
            yield permit
        except base.NothingWritten:
            is_written = False
            raise
        finally:
            with self._lock:
                self._doubtful[path] = self._counter.value if is_written else before

    def marked(self, report: rpc.HostReport) -> rpc.HostReport:
        """The report; of devices that were written since they were looked at it says so."""
        with self._lock:
            doubtful = {
                path for path, last in self._doubtful.items() if report.counter <= last
            }
        if not doubtful:
            return report
        devices = {
            driver: tuple(
                dataclasses.replace(each, being_written=True)
                if str(each.control_path) in doubtful
                else each
                for each in found
            )
            for driver, found in report.devices.items()
        }
        return dataclasses.replace(report, devices=devices)

    def _ask(self, step: rpc.ProgramStep) -> float:
        """Ask for leave; return the time until which it is given, by the clock of permits."""
        request = rpc.WriteRequest(
            host=self._conf.host,
            deployable_uuid=step.deployable_uuid,
            operation_uuid=step.operation_uuid,
            write=step.write,
        )
        asked = permit_clock.clock()
        try:
            return asked + rpc.permit_write(self._conf, request)
        except rpc.WriteRefused as exc:
            raise NotWritten(f"Nothing is written: {exc}", written=False) from exc
        except rpc.NoPermit as exc:
            raise rpc.HostStepRunning(f"Nothing is written without a permit: {exc}") from exc
