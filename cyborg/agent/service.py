# SPDX-License-Identifier: Apache-2.0
"""The agent: finds devices, reports them, and runs host steps."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import replace
from typing import Any

from oslo_config import cfg

from cyborg import metrics, process, rpc
from cyborg.agent import (
    cleaning,
    discovery,
    host_steps,
    hotplug,
    node_name,
    not_offered,
    opened,
    pass_counter,
    sriov,
)
from cyborg.drivers import pci, privileged, registry

LOG = logging.getLogger(__name__)

#: Seconds between the first attempts to deliver a report. Each pause is twice as long as the last.
_FIRST_PAUSE = 1.0


class Agent:
    """The agent of one host. It starts and keeps trying even if all other services are down."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._node = node_name.of(conf)
        self._started = time.time_ns() // 1_000_000
        self._passes = pass_counter.PassCounter(self._look_now)
        self._last_summary: str | None = None
        loaded = registry.load(conf)
        self._drivers, self._load_errors = loaded.drivers, loaded.errors
        self._opened = opened.Opened(conf, asks=True)
        self._discovery = discovery.Discovery(
            conf.host,
            loaded.drivers,
            timeout=conf.agent.driver_timeout,
            look=self._opened.look,
            measured=metrics.may_be_read(conf),
        )
        self._steps = host_steps.StepEndpoint(conf, loaded.drivers, self._started, self._passes)
        self._sriov = sriov.Configurator(conf, self._steps.layout_changes)
        self._server = rpc.agent_server(conf, conf.host, self._steps)
        self._loop = process.Loop("discovery", self._step)
        self._watcher = hotplug.EventWatcher(self._look_now) if conf.agent.hotplug else None
        self._last_pass = -math.inf
        self._pass_wanted = threading.Event()
        conf.register_mutate_hook(self._reload)
        self._delivered: rpc.HostReport | None = None
        #: What is sent in the place of a report that says the same as the delivered one.
        self._unchanged: rpc.UnchangedReport | None = None
        self._undelivered: rpc.HostReport | None = None
        self._last_report = self._next_attempt = -math.inf
        self._pause = _FIRST_PAUSE
        #: Why the last attempt to deliver has failed; empty after one that has not.
        self._last_failure = ""

    def start(self) -> None:
        """Make the first pass now; receive host steps as soon as the broker can be reached."""
        privileged.act_alone()
        self._server.start()
        if self._watcher is not None:
            # Started before the first pass, so that a change during it causes another.
            self._watcher.start()
        self._loop.start()

    def stop(self) -> None:
        """Make no more passes and accept no more steps."""
        if self._watcher is not None:
            self._watcher.stop()
        self._loop.stop()
        self._server.stop()

    def _look_now(self) -> None:
        self._pass_wanted.set()
        self._loop.wake()

    def _reload(self, conf: cfg.ConfigOpts, _changed: Any) -> None:
        self._discovery.timeout = conf.agent.driver_timeout
        self._loop.wake()

    def _step(self) -> float:
        """Make a pass if it is due, deliver a report that is not; return how long to wait."""
        asked = self._pass_wanted.is_set()
        if asked or time.monotonic() >= self._next_pass():
            if asked:
                # A request from now on causes another pass, whose report is always sent.
                self._pass_wanted.clear()
            report = self._report()
            self._last_pass = time.monotonic()
            self._queue(report, asked=asked)
        if self._undelivered is not None and time.monotonic() >= self._next_attempt:
            self._deliver(self._undelivered)
        due = self._next_pass()
        if self._undelivered is not None:
            due = min(due, self._next_attempt)
        return max(0.0, due - time.monotonic())

    def _next_pass(self) -> float:
        """When the next periodic pass is due: for discovery, or for a report as a sign of life."""
        options = self._conf.agent
        due: float = min(
            self._last_pass + options.discovery_interval,
            self._last_report + options.report_interval,
        )
        return due

    def _queue(self, report: rpc.HostReport, *, asked: bool) -> None:
        """Queue a report that was asked for, has news, or is due as a sign of life."""
        waiting = self._undelivered
        if asked or not _is_same(report, self._delivered if waiting is None else waiting):
            self._next_attempt = -math.inf
        elif waiting is None and self._last_pass < (
            self._last_report + self._conf.agent.report_interval
        ):
            return
        # It replaces a report that could not be delivered: each report is complete.
        self._undelivered, self._last_report = report, self._last_pass

    def _report(self) -> rpc.HostReport:
        # Counted first: for a change that is made meanwhile this report must count as older.
        counter = self._passes.begin()
        with metrics.observed(metrics.PASS_SECONDS, outcome="partial") as seen:
            sriov_errors = self._sriov.apply()
            found = self._discovery.run()
            findings = cleaning.noted(self._conf, self._opened.noted(found), self._drivers)
            findings = self._steps.specifications.noted(findings)
            self._discovery.remember()
            errors = {**self._load_errors, **sriov_errors, **findings.errors}
            seen["outcome"] = "partial" if errors else "complete"
        metrics.pass_ended(findings.devices, errors)
        # One list may be for many hosts, so an object that selects nothing on this one is no fault.
        errors = not_offered.joined(
            errors,
            not_offered.remarks(findings, self._drivers),
            {sriov.NAME: self._sriov.unmatched(findings.functions)},
        )
        self._log_changes(
            ", ".join(
                [f"{name}: {len(devices)} devices" for name, devices in findings.devices.items()]
                + [f"{name}: {sentence}" for name, sentence in errors.items()]
            )
        )
        functions = findings.functions
        left_out = not_offered.find(functions or pci.Snapshot(()), findings, self._drivers)
        return rpc.HostReport(
            host=self._conf.host,
            node=self._node,
            started=self._started,
            counter=counter,
            errors=errors,
            devices=findings.devices,
            unread=tuple(sorted(findings.unread)),
            not_offered=None if functions is None else len(left_out),
            not_offered_reasons=tuple(not_offered.lines(left_out, rpc.REASONS_MAX)),
            present=findings.present,
            readings=findings.readings if self._conf.agent.report_readings else {},
        )

    def _log_changes(self, summary: str) -> None:
        if summary != self._last_summary:
            LOG.info("Drivers of host %s: %s", self._conf.host, summary or "none enabled")
            self._last_summary = summary

    def _deliver(self, report: rpc.HostReport) -> None:
        try:
            # Marked last of all: it may have waited long.
            marked = self._steps.writes.marked(report)
            if marked is not report or not self._is_stored(report):
                rpc.report(self._conf, marked)
                self._unchanged = report.unchanged() if marked is report else None
        except rpc.ReportFailed as exc:
            self._log_failure(report, str(exc))
            self._next_attempt = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, self._conf.agent.report_interval)
            return
        level = logging.INFO if self._last_failure else logging.DEBUG
        LOG.log(level, "Report %d is delivered", report.counter)
        self._last_failure = ""
        metrics.AGENT_LAST.labels("delivery").set_to_current_time()
        self._delivered, self._undelivered = report, None
        self._next_attempt, self._pause = -math.inf, _FIRST_PAUSE
        # Here a conductor is there to be asked.
        self._steps.reconcile()

    def _log_failure(self, report: rpc.HostReport, sentence: str) -> None:
        """Say it once, however often the delivery is tried."""
        level = logging.DEBUG if sentence == self._last_failure else logging.WARNING
        LOG.log(level, "Report %d is not delivered yet: %s", report.counter, sentence)
        self._last_failure = sentence

    def _is_stored(self, report: rpc.HostReport) -> bool:
        """Have a conductor note a report that says the same as the delivered one, if it does.

        The digest of many devices takes a while, so it is made once for each that is delivered.
        """
        if self._unchanged is None or not _is_same(report, self._delivered):
            return False
        said = replace(self._unchanged, counter=report.counter, readings=report.readings)
        return rpc.report_unchanged(self._conf, said)


def _is_same(one: rpc.HostReport, other: rpc.HostReport | None) -> bool:
    """True if both say the same, each of its own pass."""
    return other is not None and replace(one, counter=other.counter) == other
