# SPDX-License-Identifier: Apache-2.0
"""The driver's process: two sockets, and three loops."""

from __future__ import annotations

import logging

from oslo_config import cfg

from cyborg import process
from cyborg.common import errors
from cyborg.kube import accelerators, inventory, slices
from cyborg.kube.bindings import Bindings
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
#: Passes without an answer of Cyborg's after which no further pod may have a device.
_MISSED = 3


class KubeletPlugin:
    """The driver that runs on a node."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """:raises errors.Misconfigured: an option makes no sense"""
        self._conf = conf
        self._api = accelerators.KubeApi(conf)
        cluster = Cluster(conf)
        self._publisher = Publisher(cluster, node_name(conf))
        self._leases = Leases(conf, self._api, cluster)
        self._health = DeviceHealth(node_name(conf), lambda: conf.kube.interval)
        claims = ResourceClaims(conf, self._api, cluster)
        self._endpoints = Endpoints(conf, claims, self._health)
        self._bindings = Bindings(conf, cluster, claims)
        #: What was seen last; a driver that has seen nothing yet offers nothing.
        self._seen = inventory.NodeInventory(hostname=conf.host, parts=())
        self._missed = 0
        #: What was left out of each part, by provider, as the log has said it.
        self._left_out: dict[str, list[str]] = {}
        self._loops = [
            process.Loop("kube-devices", self._look),
            process.Loop("kube-leases", self._renew),
            process.Loop("kube-bindings", self._bind),
        ]

    def start(self) -> None:
        """Serve the kubelet, and publish the devices."""
        self._endpoints.start()
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """Serve no further call. What claims have is kept, and so are the slices."""
        self._bindings.stop()
        for loop in self._loops:
            loop.stop()
        self._endpoints.stop()

    def _look(self) -> float:
        try:
            self._endpoints.check()
            with answers.reading("Cyborg or Kubernetes"):
                seen = self._see()
                self._publish(seen)
                self._bindings.refresh(seen)
        except errors.CyborgError as exc:
            LOG.warning("The devices are not published: %s", exc)
        return float(self._conf.kube.interval)

    def _see(self) -> inventory.NodeInventory:
        """The devices as Cyborg shows them, or after some passes without it, as none may be used.

        :raises CyborgError: it is not known, and was a moment ago
        """
        try:
            self._seen = inventory.read(self._conf, self._api)
        except errors.CyborgError as exc:
            self._missed += 1
            self._health.note_failure()
            if self._missed < _MISSED:
                raise
            LOG.warning("Pods get no further devices, since Cyborg does not answer: %s", exc)
            return self._seen.unsure()
        self._missed = 0
        self._health.note(self._seen)
        self._tell_left_out(self._seen)
        return self._seen

    def _publish(self, seen: inventory.NodeInventory) -> None:
        conf = self._conf
        shareable = slices.SHAREABLE not in self._publisher.dropped
        wanted = slices.specs(
            seen.parts,
            conf.kube.driver_name,
            node_name(conf),
            evict_unhealthy=conf.kube.evict_unhealthy,
            binding_conditions=conf.kube.binding_conditions,
            shareable=shareable,
        )
        self._publisher.publish(wanted)
        if shareable and slices.SHAREABLE in self._publisher.dropped:
            self._publish(seen)

    def _bind(self) -> float:
        try:
            with answers.reading("Kubernetes"):
                return self._bindings.follow()
        except errors.CyborgError as exc:
            if not self._bindings.is_stopped:
                LOG.warning("It is not known what claims need: %s", exc)
            return float(self._conf.kube.interval)

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
