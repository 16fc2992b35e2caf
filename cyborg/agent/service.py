# SPDX-License-Identifier: Apache-2.0
"""The agent: looks for devices, reports them, and carries out host steps."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Any

from oslo_config import cfg

from cyborg import metrics, process, rpc
from cyborg.agent import discovery, endpoint, hotplug, passes, sriov
from cyborg.drivers import privileged, registry

LOG = logging.getLogger(__name__)

#: Seconds between the first attempts to deliver a report; each further pause is twice as long.
_FIRST_PAUSE = 1.0


class Agent:
    """The agent of one host. Starts, and keeps trying, whatever else is down."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._node = conf.agent.resource_provider_name or conf.host
        self._started = time.time_ns() // 1_000_000
        self._passes = passes.Counter(self._look_now)
        self._last_summary: str | None = None
        loaded = registry.load(conf)
        self._load_errors = loaded.errors
        self._discovery = discovery.Discovery(
            conf.host, loaded.drivers, timeout=conf.agent.driver_timeout
        )
        self._virtual_functions = sriov.Keeper(conf)
        steps = endpoint.Endpoint(conf, loaded.drivers, self._started, self._passes)
        self._server = rpc.agent_server(conf, conf.host, steps)
        self._loop = process.Loop("discovery", self._step)
        self._watcher = hotplug.Watcher(self._look_now) if conf.agent.hotplug else None
        self._last_pass = -math.inf
        self._looking_due = threading.Event()
        conf.register_mutate_hook(self._read_again)
        self._delivered: rpc.HostReport | None = None
        self._undelivered: rpc.HostReport | None = None
        self._last_report = self._next_attempt = -math.inf
        self._pause = _FIRST_PAUSE

    def start(self) -> None:
        """Make the first pass now, and receive host steps as soon as there is a broker."""
        privileged.act_alone()
        self._server.start()
        if self._watcher is not None:
            # Before the first pass, so that what changes during it makes another.
            self._watcher.start()
        self._loop.start()

    def stop(self) -> None:
        """Make no further pass and accept no further step."""
        if self._watcher is not None:
            self._watcher.stop()
        self._loop.stop()
        self._server.stop()

    def _look_now(self) -> None:
        self._looking_due.set()
        self._loop.wake()

    def _read_again(self, conf: cfg.ConfigOpts, _changed: Any) -> None:
        self._discovery.timeout = conf.agent.driver_timeout
        self._loop.wake()

    def _step(self) -> float:
        """Make a pass if it is due, deliver what is not delivered; return how long to wait."""
        asked = self._looking_due.is_set()
        if asked or time.monotonic() >= self._next_pass():
            if asked:
                # Who asks from now on has another pass made, whose report is sent in any case.
                self._looking_due.clear()
            report = self._report()
            self._last_pass = time.monotonic()
            self._take_up(report, asked=asked)
        if self._undelivered is not None and time.monotonic() >= self._next_attempt:
            self._deliver(self._undelivered)
        due = self._next_pass()
        if self._undelivered is not None:
            due = min(due, self._next_attempt)
        return max(0.0, due - time.monotonic())

    def _next_pass(self) -> float:
        """When to look again though nobody asks: a sign of life says what is seen then."""
        options = self._conf.agent
        due: float = min(
            self._last_pass + options.discovery_interval,
            self._last_report + options.report_interval,
        )
        return due

    def _take_up(self, report: rpc.HostReport, *, asked: bool) -> None:
        """Have a report delivered that was asked for, says something new, or is a sign of life."""
        waiting = self._undelivered
        if asked or not _say_the_same(report, self._delivered if waiting is None else waiting):
            self._next_attempt = -math.inf
        elif waiting is None and self._last_pass < (
            self._last_report + self._conf.agent.report_interval
        ):
            return
        # It replaces one that could not be delivered: it says all of it anew.
        self._undelivered, self._last_report = report, self._last_pass

    def _report(self) -> rpc.HostReport:
        # Taken first: whoever has changed something meanwhile takes this report for an older one.
        counter = self._passes.begin()
        with metrics.observed(metrics.PASS_SECONDS, outcome="partial") as seen:
            unsettled = self._virtual_functions.settle()
            findings = self._discovery.run()
            errors = {**self._load_errors, **unsettled, **findings.errors}
            seen["outcome"] = "partial" if errors else "complete"
        metrics.pass_ended(findings.devices, errors)
        self._tell_changes(
            ", ".join(
                [f"{name}: {len(devices)} devices" for name, devices in findings.devices.items()]
                + [f"{name}: {sentence}" for name, sentence in errors.items()]
            )
        )
        return rpc.HostReport(
            host=self._conf.host,
            node=self._node,
            started=self._started,
            counter=counter,
            errors=errors,
            devices=findings.devices,
        )

    def _tell_changes(self, summary: str) -> None:
        if summary != self._last_summary:
            LOG.info("Drivers of host %s: %s", self._conf.host, summary or "none enabled")
            self._last_summary = summary

    def _deliver(self, report: rpc.HostReport) -> None:
        try:
            rpc.report(self._conf, report)
        except rpc.ReportFailed as exc:
            LOG.warning("Report %d is not delivered yet: %s", report.counter, exc)
            self._next_attempt = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, self._conf.agent.report_interval)
            return
        LOG.debug("Report %d is delivered", report.counter)
        metrics.AGENT_LAST.labels("delivery").set_to_current_time()
        self._delivered, self._undelivered = report, None
        self._next_attempt, self._pause = -math.inf, _FIRST_PAUSE


def _say_the_same(one: rpc.HostReport, other: rpc.HostReport | None) -> bool:
    return other is not None and (one.errors, one.devices) == (other.errors, other.devices)
