# SPDX-License-Identifier: Apache-2.0
"""Binds what Kubernetes' scheduler has allocated to a claim, and gives it back.

A claim is a consumer of Cyborg's, whose uuid is the claim's uid. Cyborg keeps all that is known of
it: here nothing is stored, so any of the services may be restarted at any time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oslo_config import cfg

from cyborg import errors
from cyborg.kube import accelerators, inventory, slices
from cyborg.kube.cluster import Cluster, node_name

LOG = logging.getLogger(__name__)

#: States of an allocation in which something is held for it, or is about to be.
LIVE = frozenset({"Claiming", "Binding", "Active"})
_ACTIVE = "Active"
#: Seconds between two looks at an allocation that is not active yet.
_PAUSE = 0.5

_Row = Mapping[str, Any]


class NotPrepared(errors.CyborgError):
    """A claim cannot be prepared now; the kubelet asks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A device that a claim has, with the names by which container runtimes know it."""

    request: str
    device: str
    cdi_devices: tuple[str, ...]


class Claims:
    """The claims whose pods are on this node."""

    def __init__(self, conf: cfg.ConfigOpts, api: accelerators.Api, cluster: Cluster) -> None:
        self._conf = conf
        self._api = api
        self._cluster = cluster
        self._pool = node_name(conf)

    def prepare(self, namespace: str, name: str, uid: str) -> list[Given]:
        """Have what was allocated to a claim bound; again, if it is asked for again.

        :raises CyborgError: it is not ready; the message says why
        """
        deadline = time.monotonic() + self._conf.kube.prepare_timeout
        results = self._results(namespace, name, uid)
        if not results:
            return []
        providers = [_provider(result) for result in results]
        allocation = self._standing(uid, providers) or self._allocate(uid, providers)
        allocation = self._await_active(allocation, deadline)
        given = [_given(n, result, allocation) for n, result in enumerate(results)]
        LOG.info("Claim %s/%s has %d devices", namespace, name, len(given))
        return given

    def unprepare(self, uid: str) -> None:
        """Give back what a claim has, if it has anything.

        :raises CyborgError: that is not done
        """
        self._api.delete(f"/allocations/{uid}")
        LOG.info("Claim %s has nothing any more", uid)

    def _results(self, namespace: str, name: str, uid: str) -> list[_Row]:
        claim = self._cluster.claim(namespace, name)
        if claim is None or claim["metadata"]["uid"] != uid:
            raise NotPrepared(f"Claim {namespace}/{name} is not the one with uid {uid} any more.")
        return allocated(claim, self._conf.kube.driver_name, self._pool)

    def _standing(self, uid: str, providers: Sequence[str]) -> _Row | None:
        """What the claim has already; None if it has nothing.

        A claim may have been allocated other devices, if it was never unprepared in between.
        """
        found = self._api.find(f"/allocations/{uid}")
        if found is None or found["state"] not in LIVE:
            return None
        if _is_of(found, providers):
            return found
        self._api.delete(f"/allocations/{uid}")
        raise NotPrepared(f"Claim {uid} had other devices, which are being given back.")

    def _allocate(self, uid: str, providers: Sequence[str]) -> _Row:
        known = inventory.read(self._conf, self._api)
        parts = []
        for provider in providers:
            part = known.part(provider)
            if part is None:
                raise NotPrepared(f"Provider {provider} does not belong to Kubernetes now.")
            parts.append(
                {
                    "groups": [part.group()],
                    "hosts": known.hostname,
                    "device_rp_uuid": provider,
                }
            )
        consumer = {
            "uuid": uid,
            "type": accelerators.CONSUMER_TYPE,
            "name": self._conf.host,
        }
        body = {
            "consumer": consumer,
            "parts": parts,
            "lease_seconds": self._conf.kube.lease_seconds,
        }
        made: _Row = self._api.call("POST", "/allocations", body)
        return made

    def _await_active(self, allocation: _Row, deadline: float) -> _Row:
        uid = allocation["uuid"]
        found: _Row | None = allocation
        while found is not None and found["state"] != _ACTIVE:
            if found["state"] not in LIVE:
                raise NotPrepared(f"Allocation {uid} is {found['state']}: {found['state_reason']}")
            if time.monotonic() > deadline:
                raise NotPrepared(f"Allocation {uid} is still {found['state']}.")
            time.sleep(_PAUSE)
            found = self._api.find(f"/allocations/{uid}")
        if found is None:
            raise NotPrepared(f"Allocation {uid} is gone.")
        return found


def allocated(claim: _Row, driver: str, pool: str) -> list[_Row]:
    """The devices of a pool that Kubernetes has allocated to a claim."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results: Iterable[_Row] = (allocation.get("devices") or {}).get("results") or ()
    return [each for each in results if (each["driver"], each["pool"]) == (driver, pool)]


def _provider(result: _Row) -> str:
    if result.get("adminAccess"):
        raise NotPrepared("There is no administrative access to devices of this driver.")
    provider = slices.provider_of(result["device"])
    if provider is None:
        raise NotPrepared(f"{result['device']} is no name of a device of this driver.")
    return provider


def _is_of(allocation: _Row, providers: Sequence[str]) -> bool:
    """Whether an allocation is of just these providers, as far as it is bound."""
    groups = {each["group"] for each in allocation["accelerators"]}
    return groups == set(range(len(providers))) and all(
        each["device_rp_uuid"] in {None, providers[each["group"]]}
        for each in allocation["accelerators"]
    )


def _given(number: int, result: _Row, allocation: _Row) -> Given:
    own = [each for each in allocation["accelerators"] if each["group"] == number]
    names = [each["attach_handle_info"].get("cdi_device") for each in own]
    if not names or None in names:
        raise NotPrepared(
            f"Containers cannot be given {result['device']}: see [agent] cdi_dir of its host."
        )
    # The kubelet knows requests, and not which of several that were possible was chosen.
    request = result["request"].partition("/")[0]
    return Given(request=request, device=result["device"], cdi_devices=tuple(names))
