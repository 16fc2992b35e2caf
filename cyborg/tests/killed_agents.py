# SPDX-License-Identifier: Apache-2.0
"""Agents with files for containers that are killed right after a step, before they answer."""

from __future__ import annotations

import pathlib
import random
import threading
from collections import Counter

from oslo_config import cfg

from cyborg import rpc
from cyborg.agent import discovery, host_steps, pass_counter
from cyborg.drivers import base, fake
from cyborg.tests import cdi_schema, hosts

_PATIENCE = 60


class Agents:
    """The agents of some hosts, and what conductors ask of them."""

    def __init__(self, conf: cfg.ConfigOpts, folder: pathlib.Path, seed: object) -> None:
        self._conf = conf
        self._folder = folder
        self._lock = threading.Lock()
        self._chance = random.Random(f"{seed}/agents")
        self._findings: dict[str, discovery.Findings] = {}
        self._present: dict[str, host_steps.StepEndpoint] = {}
        #: How often each agent was killed.
        self.killed: Counter[str] = Counter()

    def start(self, host: str, *devices: base.Device) -> None:
        """Let an agent find the devices of its host, and report them."""
        self._findings[host] = discovery.Findings(devices={hosts.DRIVER: devices}, errors={})
        noted = self._restart(host)
        hosts.apply(*noted.devices[hosts.DRIVER], host=host)

    def _restart(self, host: str) -> discovery.Findings:
        """Start an agent, which knows nothing but the folder; its first pass."""
        self._conf.set_override("cdi_dir", str(self._folder / host), group="agent")
        drivers: dict[str, base.Driver] = {hosts.DRIVER: fake.FakeDriver(self._conf)}
        counter = pass_counter.PassCounter(lambda: None)
        endpoint = host_steps.StepEndpoint(self._conf, drivers, 0, counter)
        noted = endpoint.specifications.noted(self._findings[host])
        self._present[host] = endpoint
        return noted

    def run_host_step(
        self, _conf: cfg.ConfigOpts, host: str, step: rpc.HostStep, _timeout: float
    ) -> None:
        """Stands in for :func:`cyborg.rpc.run_host_step`."""
        self._present[host].host_step({}, step.to_wire(), _PATIENCE)
        with self._lock:
            if self._chance.random() < 0.2:
                self.killed[host] += 1
                self._restart(host)
                raise rpc.HostUnreachable("the agent does not answer")

    def files(self) -> list[tuple[str, str]]:
        """The host and the ARQ of each file, in order; all files are as they must be."""
        return sorted(
            (path.parent.name, device["name"])
            for path in self._folder.glob("*/*.json")
            for device in cdi_schema.read(path)["devices"]
        )

    def drafts(self) -> list[pathlib.Path]:
        """What was left half written."""
        return list(self._folder.glob("*/.*.new"))
