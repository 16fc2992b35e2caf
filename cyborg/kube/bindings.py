# SPDX-License-Identifier: Apache-2.0
"""Programs the devices of claims before their pods are placed for good.

A device that can be programmed has a condition in its slice, for which the scheduler waits: this
says at once that a claim needs no program, or later that it has its program or cannot have it.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Mapping
from concurrent import futures
from typing import Any

from oslo_config import cfg

from cyborg.common import errors
from cyborg.kube import claim_programs, slices
from cyborg.kube.accelerators import ApiFailed
from cyborg.kube.cluster import Cluster, node_name
from cyborg.kube.resource_claims import Call, NotProgrammed, ResourceClaims, allocated

LOG = logging.getLogger(__name__)

#: Seconds for which changes of claims are watched; all are listed again after that.
_WATCH = 300
#: Claims whose devices are programmed at the same time.
_CLAIMS = 8
#: Seconds that giving something back may take.
_GIVE_UP = 30.0
#: Seconds for which a claim that has just lost its devices may be refused new ones.
_RELEASED = 10.0
#: Answers of Cyborg that stay the same: it cannot be had, or is nothing that there is.
_CONFLICT, _FINAL = 409, {400, 404, 409, 501}
#: Seconds between two attempts.
_AGAIN = 1.0
_LONGEST = 1024

_Row = Mapping[str, Any]


class Bindings:
    """The claims of this node that their pods wait for."""

    def __init__(self, conf: cfg.ConfigOpts, cluster: Cluster, claims: ResourceClaims) -> None:
        self._conf = conf
        self._driver, self._pool = conf.kube.driver_name, node_name(conf)
        self._cluster = cluster
        self._claims = claims
        self._workers = futures.ThreadPoolExecutor(_CLAIMS, thread_name_prefix="kube-bind")
        self._others = futures.ThreadPoolExecutor(1, thread_name_prefix="kube-ready")
        #: The claims that have devices of this node, by uid, as they were seen last.
        self._seen: dict[str, _Row] = {}
        #: The uids of those that are being programmed.
        self._busy: set[str] = set()
        self._stopped = False

    def stop(self) -> None:
        """Begin nothing more, and let what waits end."""
        self._stopped = True
        self._cluster.stop()
        self._seen.clear()
        for workers in (self._workers, self._others):
            workers.shutdown(wait=False, cancel_futures=True)

    def follow(self) -> float:
        """Do what all claims need now, and what they come to need for a while.

        :raises Unanswered: Kubernetes does not say
        """
        listed: set[str] = set()
        for kind, claim in self._cluster.claim_events(_WATCH):
            if self._stopped:
                break
            if kind == "LISTING_ENDED":
                for uid in (self._seen.keys() | self._claims.early) - listed:
                    self._lost(uid)
            else:
                listed.add(claim["metadata"]["uid"])
                self.note(claim, is_gone=kind == "DELETED")
        return 0.0

    def note(self, claim: _Row, *, is_gone: bool) -> None:
        """Do what a claim needs that was seen, or is gone."""
        uid = claim["metadata"]["uid"]
        results = [] if is_gone else allocated(claim, self._driver, self._pool)
        if not results:
            self._lost(uid)
            return
        self._seen[uid] = claim
        if _waits(claim, results, self._driver) and uid not in self._busy:
            self._busy.add(uid)
            # Who needs no program does not wait behind those who do.
            workers = self._workers if self._needs_program(claim) else self._others
            workers.submit(self._bind, claim)

    def _lost(self, uid: str) -> None:
        self._seen.pop(uid, None)
        if uid in self._claims.early:
            self._workers.submit(self._give_up, uid)

    def _give_up(self, uid: str) -> None:
        try:
            self._claims.give_up(uid, Call(until=time.monotonic() + _GIVE_UP))
        except errors.CyborgError as exc:
            # It is tried again when all claims are listed.
            LOG.warning("What claim %s had is not given back: %s", uid, exc)

    def _bind(self, claim: _Row) -> None:
        """Program the devices of a claim, if it wants that, and say so."""
        meta = claim["metadata"]
        try:
            why = self._reserved(claim)
            if meta["uid"] in self._seen:
                self._tell(claim, why)
            elif not self._stopped:
                self._give_up(meta["uid"])
        except errors.CyborgError as exc:
            LOG.warning("Claim %s/%s is not ready: %s", meta["namespace"], meta["name"], exc)
        except Exception:
            LOG.exception("Claim %s/%s is not ready", meta["namespace"], meta["name"])
        finally:
            self._busy.discard(meta["uid"])

    def _reserved(self, claim: _Row) -> str | None:
        """Have the claim's programs run; why that cannot be, or None.

        :raises CyborgError: that is not known yet
        """
        uid = claim["metadata"]["uid"]
        begun = time.monotonic()
        call = Call(
            until=begun + self._conf.kube.program_timeout, is_heard=lambda: uid in self._seen
        )
        while True:
            try:
                if self._needs_program(claim):
                    self._claims.reserve(claim, call)
                return None
            except errors.CyborgError as exc:
                if _is_final(exc, begun):
                    self._give_up(uid)
                    return exc.message
                if not call.is_heard() or time.monotonic() > call.until:
                    raise
            time.sleep(_AGAIN)

    def _needs_program(self, claim: _Row) -> bool:
        return any(
            slices.is_layout(each["device"])
            or claim_programs.is_wanted(claim, self._driver, each["request"])
            for each in allocated(claim, self._driver, self._pool)
        )

    def _tell(self, claim: _Row, why: str | None) -> None:
        meta = claim["metadata"]
        condition = slices.failed(self._driver) if why else slices.bound(self._driver)
        LOG.info("Claim %s/%s: %s %s", meta["namespace"], meta["name"], condition, why or "")
        said = {
            "type": condition,
            "status": "True",
            "reason": "NotProgrammed" if why else "Ready",
            "message": (why or "The device is as the claim wants it.")[:_LONGEST],
            "lastTransitionTime": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
        results = allocated(claim, self._driver, self._pool)
        entries = [entry(each) | {"conditions": [said]} for each in results]
        self._cluster.apply_claim_status(document(claim, entries))


def _is_final(exc: errors.CyborgError, begun: float) -> bool:
    """True if what a claim asked for since then cannot be had."""
    if isinstance(exc, ApiFailed):
        was_released = exc.status == _CONFLICT and time.monotonic() < begun + _RELEASED
        return exc.status in _FINAL and not was_released
    return isinstance(exc, NotProgrammed | claim_programs.InvalidConfig)


def entry(result: _Row) -> dict[str, Any]:
    """The beginning of what the status of a claim says of a device."""
    return {key: result[key] for key in ("driver", "pool", "device", "shareID") if key in result}


def document(claim: _Row, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """What is applied to a claim, and to no later one of the same name."""
    meta = {key: claim["metadata"][key] for key in ("namespace", "name", "uid")}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": meta,
        "status": {"devices": entries},
    }


def _waits(claim: _Row, results: list[_Row], driver: str) -> bool:
    """True if the scheduler waits for a condition of ours that is not set."""
    bound, failed = slices.bound(driver), slices.failed(driver)
    told = {
        (each["pool"], each["device"])
        for each in claim["status"].get("devices") or ()
        if each["driver"] == driver
        for condition in each.get("conditions") or ()
        if condition["type"] in {bound, failed} and condition["status"] == "True"
    }
    return any(
        bound in (each.get("bindingConditions") or ())
        and (each["pool"], each["device"]) not in told
        for each in results
    )
