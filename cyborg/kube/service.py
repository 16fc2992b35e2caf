# SPDX-License-Identifier: Apache-2.0
"""The driver's process: two sockets, and two loops."""

from __future__ import annotations

import logging

from oslo_config import cfg

from cyborg import process
from cyborg.common import errors
from cyborg.kube import accelerators, inventory, slices
from cyborg.kube.cluster import Cluster, node_name
from cyborg.kube.endpoints import Endpoints
from cyborg.kube.health import DeviceHealth
from cyborg.kube.leases import Leases
from cyborg.kube.publisher import Publisher
from cyborg.kube.resource_claims import ResourceClaims
from cyborg.peers import answers

LOG = logging.getLogger(__name__)

#: Seconds until leases are renewed again if they could not be.
_RETRY = 30.0


class KubeletPlugin:
    """The driver that runs on a node."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """:raises errors.Misconfigured: an option makes no sense"""
        self._conf = conf
        self._api = accelerators.Api(conf)
        cluster = Cluster(conf)
        self._publisher = Publisher(cluster, node_name(conf))
        self._leases = Leases(conf, self._api, cluster)
        self._health = DeviceHealth(node_name(conf), lambda: conf.kube.interval)
        claims = ResourceClaims(conf, self._api, cluster)
        self._endpoints = Endpoints(conf, claims, self._health)
        #: What was left out of each part, by provider, as the log has said it.
        self._left_out: dict[str, list[str]] = {}
        self._loops = [
            process.Loop("kube-devices", self._look),
            process.Loop("kube-leases", self._renew),
        ]

    def start(self) -> None:
        """Serve the kubelet, and publish the devices."""
        self._endpoints.start()
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """Serve no further call. What claims have is kept, and so are the slices."""
        for loop in self._loops:
            loop.stop()
        self._endpoints.stop()

    def _look(self) -> float:
        conf = self._conf
        try:
            self._endpoints.check()
            with answers.reading("Cyborg or Kubernetes"):
                seen = inventory.read(conf, self._api)
                self._health.note(seen)
                self._tell_left_out(seen)
                self._publisher.publish(
                    slices.specs(
                        seen.parts,
                        conf.kube.driver_name,
                        node_name(conf),
                        evict_unhealthy=conf.kube.evict_unhealthy,
                    )
                )
        except errors.CyborgError as exc:
            LOG.warning("The devices are not published: %s", exc)
            self._health.note_failure()
        return float(conf.kube.interval)

    def _tell_left_out(self, seen: inventory.NodeInventory) -> None:
        now = {part.provider: names for part in seen.parts if (names := slices.left_out(part))}
        for provider, names in now.items():
            if self._left_out.get(provider) != names:
                LOG.info("Kubernetes has no room for these of %s: %s", provider, ", ".join(names))
        self._left_out = now

    def _renew(self) -> float:
        try:
            with answers.reading("Cyborg or Kubernetes"):
                self._leases.renew()
        except errors.CyborgError as exc:
            LOG.warning("Leases are not renewed: %s", exc)
            return min(_RETRY, self._leases.pause)
        return self._leases.pause
