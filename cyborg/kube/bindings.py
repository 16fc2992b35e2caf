# SPDX-License-Identifier: Apache-2.0
"""Programs the devices of claims before their pods are placed for good.

A device that can be programmed has a condition in its slice, for which the scheduler waits: this
says at once that a claim needs no program, or later that it has its program or cannot have it.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

from oslo_config import cfg

from cyborg.common import errors
from cyborg.common.allocation_states import ACTIVE
from cyborg.kube import claim_programs, health, inventory, messages, resource_claims, slices
from cyborg.kube.accelerators import ApiFailed
from cyborg.kube.cluster import Cluster, node_name
from cyborg.kube.inventory import NodeInventory
from cyborg.kube.resource_claims import Call, NotProgrammed, ResourceClaims, allocated, held

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
#: Addresses of a device in a status, which has room for 10 KiB.
_MOST_PLACES = 64
_HEALTH = {
    messages.HEALTHY: "healthy",
    messages.UNHEALTHY: "unhealthy",
    messages.UNKNOWN: "unknown",
}

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
        #: The last status of the devices of each claim, by its uid.
        self._applied: dict[str, Any] = {}
        #: The uids of those that are being programmed.
        self._busy: set[str] = set()
        self.is_stopped = False

    def stop(self) -> None:
        """Begin nothing more, and let what waits end."""
        self.is_stopped = True
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
            if self.is_stopped:
                break
            if kind == "LISTING_ENDED":
                for uid in (self._seen.keys() | self._claims.early) - listed:
                    self._lost(uid)
            else:
                listed.add(claim["metadata"]["uid"])
                self.note(claim, is_gone=kind == "DELETED")
        return _AGAIN

    def note(self, claim: _Row, *, is_gone: bool) -> None:
        """Do what a claim needs that was seen, or is gone."""
        uid = claim["metadata"]["uid"]
        results = [] if is_gone else allocated(claim, self._driver, self._pool)
        if not results:
            self._lost(uid)
            return
        self._seen[uid] = claim
        self._begin(claim)

    def _begin(self, claim: _Row) -> None:
        """Have a claim's condition set, if one is waited for, and nobody does it already."""
        uid, results = claim["metadata"]["uid"], allocated(claim, self._driver, self._pool)
        if _waits(claim, results, self._driver) and uid not in self._busy:
            self._busy.add(uid)
            # A claim without a program does not wait behind those with one.
            workers = self._workers if self._needs_program(claim) else self._others
            self._submit(workers, self._bind, claim)

    def _submit(self, workers: futures.Executor, function: Any, *arguments: Any) -> None:
        try:
            workers.submit(function, *arguments)
        except RuntimeError:
            # It may have been stopped meanwhile.
            if not self.is_stopped:
                raise

    def _lost(self, uid: str) -> None:
        self._seen.pop(uid, None)
        self._applied.pop(uid, None)
        if uid in self._claims.early:
            self._submit(self._workers, self._give_up_lost, uid)

    def _give_up_lost(self, uid: str) -> None:
        # It may have got devices anew before its turn came.
        if uid not in self._seen:
            self._give_up(uid)

    def _give_up(self, uid: str) -> None:
        try:
            self._claims.give_up(uid, Call(until=time.monotonic() + _GIVE_UP))
        except errors.CyborgError as exc:
            # It is tried again when all claims are listed.
            LOG.warning("The devices of claim %s are not given back: %s", uid, exc)

    def _bind(self, claim: _Row) -> None:
        """Program the devices of a claim, if it wants that, and say so."""
        meta = claim["metadata"]
        try:
            why = self._reserved(claim)
            if meta["uid"] in self._seen:
                self._tell(claim, why)
            elif not self.is_stopped:
                self._give_up(meta["uid"])
        except errors.CyborgError as exc:
            LOG.warning("Claim %s/%s is not ready: %s", meta["namespace"], meta["name"], exc)
        except Exception:
            LOG.exception("Claim %s/%s is not ready", meta["namespace"], meta["name"])
        finally:
            self._busy.discard(meta["uid"])
            latest = self._seen.get(meta["uid"], claim)
            if latest is not claim:
                # It may have got other devices meanwhile.
                self._begin(latest)

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
            for each in held(claim, self._driver, self._pool)
        )

    def _tell(self, claim: _Row, why: str | None) -> None:
        meta = claim["metadata"]
        condition = slices.failed(self._driver) if why else slices.bound(self._driver)
        LOG.info("Claim %s/%s: %s %s", meta["namespace"], meta["name"], condition, why or "")
        message = why or "The device is as the claim wants it."
        said = _condition(condition, "NotProgrammed" if why else "Ready", message)
        self._apply(self._seen.get(meta["uid"], claim), lambda each: each | _with(each, said))

    def refresh(self, seen: NodeInventory) -> None:
        """Say in the status of each claim how its devices are, where that is not said yet."""
        for uid, claim in list(self._seen.items()):
            results = allocated(claim, self._driver, self._pool)
            if uid in self._busy or _waits(claim, results, self._driver):
                continue
            allocation = seen.allocations.get(resource_claims.consumer_of(self._conf, uid), {})
            data = {
                each["device"]: _data(seen, each["device"], allocation) for each in results
            }
            told = {each["device"]: each.get("data") for each in _told(claim, self._driver)}
            # A server without DRAResourceClaimDeviceStatus keeps nothing of it.
            if data not in (told, self._applied.get(uid)):
                self._applied[uid] = data
                self._submit(self._others, self._refresh, claim, data)

    def _refresh(self, claim: _Row, data: Mapping[str, Any]) -> None:
        ready = _condition("Ready", "Bound", "The device can be used.")

        def changed(each: dict[str, Any]) -> dict[str, Any]:
            of_device = data[each["device"]]
            held = _with(each, ready) if of_device.get("isBound") else {}
            return each | held | {"data": of_device}

        try:
            self._apply(claim, changed)
        except errors.CyborgError as exc:
            meta = claim["metadata"]
            self._applied.pop(meta["uid"], None)
            LOG.warning("Claim %s/%s has no status: %s", meta["namespace"], meta["name"], exc)

    def _apply(
        self, claim: _Row, changed: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        """Apply the status of all devices, since what is left out is removed."""
        told = {(each["pool"], each["device"]): each for each in _told(claim, self._driver)}
        entries = []
        for each in allocated(claim, self._driver, self._pool):
            kept = told.get((each["pool"], each["device"]), {})
            own = {key: kept[key] for key in ("conditions", "data") if key in kept}
            names = ("driver", "pool", "device", "shareID")
            entries.append(changed({key: each[key] for key in names if key in each} | own))
        meta = {key: claim["metadata"][key] for key in ("namespace", "name", "uid")}
        self._cluster.apply_claim_status(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                # A later claim of the same name is another one.
                "metadata": meta,
                "status": {"devices": entries},
            }
        )


def _condition(kind: str, reason: str, message: str) -> dict[str, str]:
    now = datetime.datetime.now(datetime.UTC)
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message[:_LONGEST],
        "lastTransitionTime": f"{now:%Y-%m-%dT%H:%M:%SZ}",
    }


def _with(entry: _Row, said: Mapping[str, str]) -> dict[str, Any]:
    """The conditions of a device with one that is said now; the same one stays as old as it is."""
    others = [each for each in entry.get("conditions", ()) if each["type"] != said["type"]]
    before = [each for each in entry.get("conditions", ()) if each["type"] == said["type"]]
    return {"conditions": others + (before or [dict(said)])}


def _data(seen: NodeInventory, device: str, allocation: _Row) -> dict[str, Any]:
    """The status of a device: its health, its model, and where its pod finds it."""
    provider = slices.provider_of(device)
    part = seen.part(provider or "")
    if part is None:
        return {"health": "unknown"}
    state, why = health.state_of(part)
    own = [
        each for each in allocation.get("accelerators", ()) if each["device_rp_uuid"] == provider
    ]
    places = sorted(filter(None, map(inventory.handle_address, own)))
    facts = {key: part.facts[key] for key in ("vendor", "model") if key in part.facts}
    return {
        "health": _HEALTH[state],
        **({"message": why[:_LONGEST]} if why else {}),
        **facts,
        **({"addresses": places[:_MOST_PLACES]} if places else {}),
        "isBound": bool(own) and allocation["state"] == ACTIVE,
    }


def _told(claim: _Row, driver: str) -> list[_Row]:
    """The part of a claim's status on the devices of a driver."""
    devices = claim["status"].get("devices") or ()
    return [each for each in devices if each["driver"] == driver]


def _is_final(exc: errors.CyborgError, begun: float) -> bool:
    """True if what a claim asked for since then cannot be had."""
    if isinstance(exc, ApiFailed):
        was_released = exc.status == _CONFLICT and time.monotonic() < begun + _RELEASED
        return exc.status in _FINAL and not was_released
    return isinstance(exc, NotProgrammed | claim_programs.InvalidConfig)


def _waits(claim: _Row, results: list[_Row], driver: str) -> bool:
    """True if the scheduler waits for a condition of ours that is not set."""
    bound, failed = slices.bound(driver), slices.failed(driver)
    told = {
        (each["pool"], each["device"])
        for each in _told(claim, driver)
        for condition in each.get("conditions") or ()
        if condition["type"] in {bound, failed} and condition["status"] == "True"
    }
    return any(
        bound in (each.get("bindingConditions") or ())
        and (each["pool"], each["device"]) not in told
        for each in results
    )
