# SPDX-License-Identifier: Apache-2.0
"""Renews the leases of what claims have, as long as Kubernetes has the claims."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg

from cyborg.common import errors
from cyborg.common.allocation_states import LIVE
from cyborg.kube import accelerators, inventory, resource_claims
from cyborg.kube.cluster import Cluster, Unanswered, node_name

LOG = logging.getLogger(__name__)

#: Seconds for which the devices of a claim are kept that is gone: the kubelet may be ending a pod.
_LAST = 600
#: The most seconds between two looks at which claims there are.
_LONGEST_PAUSE = 600.0

_Row = Mapping[str, Any]


class Leases:
    """The leases of the claims on this node."""

    def __init__(self, conf: cfg.ConfigOpts, api: accelerators.KubeApi, cluster: Cluster) -> None:
        self._conf = conf
        self._api = api
        self._cluster = cluster
        #: Allocations whose claims were gone when they were looked at last.
        self._gone: set[str] = set()
        #: Those that there were when they were looked at last; None before the first look.
        self._known: set[str] | None = None

    @property
    def pause(self) -> float:
        """Seconds until leases are to be renewed again."""
        return min(float(self._conf.kube.lease_seconds) / 3, _LONGEST_PAUSE)

    def renew(self) -> None:
        """Renew the lease of each claim that there is, and shorten that of one that is gone once.

        :raises accelerators.ApiFailed: Cyborg cannot be asked
        """
        held = {
            each["uuid"]
            for each in inventory.own_allocations(self._conf, self._api)
            if each["state"] in LIVE
        }
        live = self._live()
        self._tell_lost(held, live or {})
        for consumer in held:
            if live is None or consumer in live:
                self._gone.discard(consumer)
                self._renew(consumer, self._conf.kube.lease_seconds)
            elif consumer not in self._gone and self._renew(consumer, self._last):
                LOG.warning(
                    "The claim of allocation %s is gone; what it has is given back in %d s",
                    consumer,
                    self._last,
                )
                self._gone.add(consumer)
        self._gone &= held
        if self._known is not None:
            self._known = held
        elif live is not None:
            # The pod of a claim that has nothing may only be starting, or the devices were lost
            # while nobody looked; by the second look it would have started.
            in_use = {uuid for uuid, claim in live.items() if claim["status"].get("reservedFor")}
            self._known = held | in_use

    def _tell_lost(self, held: set[str], live: Mapping[str, _Row]) -> None:
        for consumer in ((self._known or set()) - held) & live.keys():
            meta = live[consumer]["metadata"]
            LOG.error(
                "Claim %s/%s has no devices of this node any more: end its pods, others may get "
                "these",
                meta["namespace"],
                meta["name"],
            )

    @property
    def _last(self) -> int:
        return min(_LAST, int(self._conf.kube.lease_seconds))

    def _live(self) -> dict[str, _Row] | None:
        """The claims that have devices of this node, by their consumers; None if not known."""
        conf = self._conf
        try:
            return {
                resource_claims.consumer_of(conf, each["metadata"]["uid"]): each
                for each in self._cluster.resource_claims()
                if resource_claims.held(each, conf.kube.driver_name, node_name(conf))
            }
        except Unanswered as exc:
            LOG.warning("It is not known which claims there are, so all are kept: %s", exc)
            return None

    def _renew(self, consumer: str, seconds: int) -> bool:
        try:
            self._api.call("POST", f"/allocations/{consumer}/renew", {"lease_seconds": seconds})
        except errors.CyborgError as exc:
            LOG.warning("The lease of allocation %s is not renewed: %s", consumer, exc)
            return False
        return True
