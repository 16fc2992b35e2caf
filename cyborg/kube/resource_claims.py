# SPDX-License-Identifier: Apache-2.0
"""Binds what Kubernetes' scheduler has allocated to a claim, and gives it back.

What a claim has on a node is a consumer of Cyborg's (:func:`consumer_of`). Cyborg keeps all that is
known of it: here only a secret is stored, so any of the services may be restarted at any time.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import logging
import os
import pathlib
import secrets
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from oslo_config import cfg

from cyborg.common import errors, program_modes
from cyborg.common.allocation_states import ACTIVE, LIVE
from cyborg.kube import accelerators, claim_programs, inventory, pod_metadata, slices
from cyborg.kube.claim_programs import WantedProgram
from cyborg.kube.cluster import Cluster, node_name
from cyborg.kube.inventory import OfferedPart
from cyborg.peers import answers

LOG = logging.getLogger(__name__)

#: Seconds between two looks at an allocation that is not active yet.
_PAUSE = 0.5

_Row = Mapping[str, Any]


class NotPrepared(errors.CyborgError):
    """A claim cannot be prepared now; the kubelet asks again."""


class NotProgrammed(NotPrepared):
    """A device of a claim cannot be had with its program; the claim should get others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskedRequest:
    """A device that Kubernetes has allocated, with the program that the claim wants on it."""

    request: str
    device: str
    provider: str
    program: WantedProgram | None
    #: How many shares of it, if it is a device of which claims have shares.
    shares: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A device that a claim has, with the names by which container runtimes know it."""

    asked: _AskedRequest
    #: None of a device that is only to be watched.
    cdi_devices: tuple[str, ...] = ()
    #: Of its PCI function, if it is one.
    address: str | None = None

    @property
    def request(self) -> str:
        """The request; the kubelet does not know which of several possible ones was chosen."""
        return self.asked.request.partition("/")[0]

    @property
    def device(self) -> str:
        """The name in the slice."""
        return self.asked.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of the kubelet's: until when it waits, by the monotonic clock, and whether it does."""

    until: float
    is_heard: Callable[[], bool] = lambda: True


def consumer_of(conf: cfg.ConfigOpts, uid: str) -> str:
    """The consumer that a claim is on this host.

    A claim may go to another node while this one cannot be reached, and keeps its uid. When the
    kubelet here ends the old pod at last, it must not free what the claim has there. Nobody else
    can tell which consumer it will be, or another project could have one of that uuid before.
    """
    path = pathlib.Path(conf.kube.plugins_dir, conf.kube.driver_name, "consumers.key")
    derived = hmac.digest(_secret(path), f"{uid} {conf.host}".encode(), "sha256")
    return str(uuid.UUID(bytes=derived[:16], version=4))


@functools.cache
def _secret(path: pathlib.Path) -> bytes:
    """The secret of this node, which is made once, and lasts as long as what the kubelet keeps."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent) as draft:
            draft.write(secrets.token_bytes(32))
            draft.flush()
            os.fsync(draft.fileno())
            # Another one that starts may have been faster, and all must have the same.
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(draft.name)
    return path.read_bytes()


class ResourceClaims:
    """The claims whose pods are on this node."""

    def __init__(self, conf: cfg.ConfigOpts, api: accelerators.KubeApi, cluster: Cluster) -> None:
        self._conf = conf
        self._api = api
        self._cluster = cluster
        self._pool = node_name(conf)
        self._metadata = pod_metadata.PodMetadata(conf)
        #: Uids of the claims that are being prepared or unprepared.
        self._busy: set[str] = set()
        self._freed = threading.Condition()
        #: Uids of the claims that have devices, and whose pods are not placed for good.
        self._early: set[str] = set()

    def prepare(self, namespace: str, name: str, uid: str, call: Call) -> list[Given]:
        """Have what was allocated to a claim bound; again, if it is asked for again.

        :raises CyborgError: it is not ready; the message says why
        """
        with self._alone(uid, call.until), answers.reading("Cyborg or Kubernetes"):
            claim = self._claim(namespace, name, uid, call)
            asked, watched = self._asked(claim)
            given = []
            if asked:
                allocation = self._bound(claim, asked, call)
                given = [_given(n, each, allocation) for n, each in enumerate(asked)]
                consumer = allocation["uuid"]
                LOG.info("Claim %s/%s has %d devices as %s", namespace, name, len(given), consumer)
            given += [Given(asked=each) for each in watched]
            given = self._described(claim, given, watched, call)
            self._early.discard(uid)
        return given

    def _described(
        self, claim: _Row, given: list[Given], watched: Sequence[_AskedRequest], call: Call
    ) -> list[Given]:
        """The given devices, with the files that tell the pod of them.

        :raises NotPrepared: a device is only to be watched, and must not be, or cannot be
        """
        if watched and not self._metadata.is_written:
            raise NotPrepared("There is no administrative access without [kube] cdi_dir.")
        if not self._metadata.is_written:
            return given
        known = inventory.read(self._conf, self._api.until(call.until))
        _refuse_held(known, watched)
        told = [
            pod_metadata.Told(
                request=each.asked.request,
                device=each.device,
                attributes=slices.told(part, each.device, each.address),
            )
            for each in given
            if (part := known.part(each.asked.provider)) is not None
        ]
        names = self._metadata.write(claim, told)
        return [
            replace(each, cdi_devices=(*each.cdi_devices, *filter(None, [names.get(each.request)])))
            for each in given
        ]

    def reserve(self, claim: _Row, call: Call) -> None:
        """Bind a claim with its program before its pod is placed; :meth:`give_up` undoes it.

        :raises CyborgError: it is not ready; the message says why
        """
        uid = claim["metadata"]["uid"]
        with self._alone(uid, call.until), answers.reading("Cyborg or Kubernetes"):
            self._early.add(uid)
            self._bound(claim, self._asked(claim)[0], call)

    @property
    def early(self) -> Set[str]:
        """The uids of claims that have devices, and whose pods are not placed for good."""
        return frozenset(self._early)

    def give_up(self, uid: str, call: Call) -> None:
        """Give back what was reserved for a claim that has lost its devices before its pod came.

        :raises CyborgError: that is not done
        """
        with self._alone(uid, call.until):
            # Its pod may have come while another call was about the claim.
            if uid in self._early:
                self._give_back(uid, call)

    def _bound(self, claim: _Row, asked: Sequence[_AskedRequest], call: Call) -> _Row:
        """The allocation that is Active for the devices of a claim."""
        api = self._api.until(call.until)
        consumer = consumer_of(self._conf, claim["metadata"]["uid"])
        allocation: _Row | None = api.find(f"/allocations/{consumer}")
        if allocation is None or allocation["state"] not in LIVE:
            allocation = self._allocate(api, consumer, asked, call)
        allocation = _await_active(api, allocation, call)
        if not _is_of(allocation, [each.provider for each in asked]):
            # Kubernetes has given the claim others since, and it was never unprepared in between.
            api.delete(f"/allocations/{consumer}")
            raise NotPrepared("It had other devices, which are being given back.")
        return allocation

    def unprepare(self, uid: str, call: Call) -> None:
        """Give back what a claim has here, if it has anything.

        :raises CyborgError: that is not done
        """
        with self._alone(uid, call.until):
            self._give_back(uid, call)

    def _give_back(self, uid: str, call: Call) -> None:
        self._api.until(call.until).delete(f"/allocations/{consumer_of(self._conf, uid)}")
        self._metadata.remove(uid)
        self._early.discard(uid)
        LOG.info("Claim %s has nothing any more", uid)

    @contextlib.contextmanager
    def _alone(self, uid: str, until: float) -> Iterator[None]:
        """Wait until no other call is about that claim."""
        with self._freed:
            timeout = until - time.monotonic()
            if not self._freed.wait_for(lambda: uid not in self._busy, max(0.0, timeout)):
                raise NotPrepared("Another call is about the same claim.")
            self._busy.add(uid)
        try:
            yield
        finally:
            with self._freed:
                self._busy.discard(uid)
                self._freed.notify_all()

    def _claim(self, namespace: str, name: str, uid: str, call: Call) -> _Row:
        claim = self._cluster.resource_claim(namespace, name, call.until)
        if claim is None or claim["metadata"]["uid"] != uid:
            raise NotPrepared(f"Claim {namespace}/{name} is not the one with uid {uid} any more.")
        return claim

    def _asked(self, claim: _Row) -> tuple[list[_AskedRequest], list[_AskedRequest]]:
        """The devices that a claim is to have, and those that it may only watch."""
        driver = self._conf.kube.driver_name
        results = allocated(claim, driver, self._pool)
        if not results:
            # The kubelet asks only for claims that have devices of this driver.
            raise NotPrepared(f"The claim has no devices of node {self._pool}.")
        found: tuple[list[_AskedRequest], list[_AskedRequest]] = ([], [])
        for each in results:
            asked = _AskedRequest(
                request=each["request"],
                device=each["device"],
                provider=_provider(each),
                program=claim_programs.wanted(claim, driver, each["request"]),
                shares=slices.shares_of(each),
            )
            found[bool(each.get("adminAccess"))].append(asked)
        return found

    def _allocate(
        self, api: accelerators.KubeApi, consumer: str, asked: Sequence[_AskedRequest], call: Call
    ) -> _Row:
        parts = []
        for each in asked:
            known = inventory.read(self._conf, api)
            part = known.part(each.provider)
            if part is None:
                raise NotPrepared(f"Provider {each.provider} does not belong to Kubernetes now.")
            group = self._programmed(api, part, each, call)
            what = {"groups": [group], "device_rp_uuid": each.provider}
            parts.append({**what, "hosts": known.hostname})
        kind = {"type": accelerators.CONSUMER_TYPE, "name": self._conf.host}
        body = {
            "consumer": {"uuid": consumer, **kind},
            "parts": parts,
            "lease_seconds": self._conf.kube.lease_seconds,
        }
        if not call.is_heard():
            # The pod may have ended, and nobody would give back what it is given now.
            raise NotPrepared("The kubelet does not wait any more.")
        made: _Row = api.call("POST", "/allocations", body)
        return made

    def _programmed(
        self, api: accelerators.KubeApi, part: OfferedPart, asked: _AskedRequest, call: Call
    ) -> dict[str, str]:
        """The group that asks for a device, whose part runs its program if a bind would not do.

        :raises CyborgError: it does not run it
        """
        layout, program = slices.layout_of(part, asked.device), asked.program
        _check_program(part, asked, layout)
        if layout is not None:
            program = claim_programs.WantedProgram("layout", layout)
        if program is None:
            return part.group(asked.shares)
        if part.mode in program_modes.FOR_ALL_HANDLES and not program.runs_on(part.runs):
            _run(api, part.deployable, program, call)
            # The accelerators may be others now.
            part = inventory.read(self._conf, api).part(asked.provider) or part
        return part.group(part.total if layout else None) | program.group()


def _check_program(part: OfferedPart, asked: _AskedRequest, layout: str | None) -> None:
    """Raise NotProgrammed if a device cannot be had with the program that its claim names."""
    program = asked.program
    if layout is None and not asked.device.rpartition("-")[2].isdecimal():
        raise NotProgrammed(f"{asked.device} has no such layout any more.")
    if program is None:
        return
    if part.mode is None:
        raise NotProgrammed(f"config: {asked.device} cannot be programmed.")
    has = layout if layout is not None else next(iter(part.runs), None)
    if (part.mode == program_modes.LAYOUT) != (program.key == "layout"):
        raise NotProgrammed(f"config: {asked.device} takes no {program.key}.")
    if program.key == "layout" and program.name != has:
        raise NotProgrammed(
            f"config: {asked.device} has layout {has}; claim the one whose attribute layout is "
            f"{program.name}."
        )


def _run(api: accelerators.KubeApi, deployable: str, program: WantedProgram, call: Call) -> None:
    """Have a whole deployable run a program, and wait for that."""
    path = f"/deployables/{deployable}/program"
    found = api.call("POST", path, program.operation())
    while not found["ended_at"]:
        _pause(call, f"The program of deployable {deployable} is still being written.")
        found = api.call("GET", f"/operations/{found['uuid']}")
    if found["state"] == "failed":
        raise NotProgrammed(f"The device cannot be programmed: {found['error']}")


def _pause(call: Call, otherwise: str) -> None:
    """Wait a moment.

    :raises NotPrepared: there is no time left, or nobody waits any more
    """
    if time.monotonic() + _PAUSE > call.until:
        raise NotPrepared(otherwise)
    if not call.is_heard():
        raise NotPrepared("Nobody waits for it any more.")
    time.sleep(_PAUSE)


def _await_active(api: accelerators.KubeApi, allocation: _Row, call: Call) -> _Row:
    consumer = allocation["uuid"]
    found: _Row | None = allocation
    while found is not None and found["state"] != ACTIVE:
        state = found["state"]
        if state not in LIVE:
            raise NotProgrammed(f"Allocation {consumer} is {state}: {found['state_reason']}")
        _pause(call, f"Allocation {consumer} is still {state}.")
        found = api.find(f"/allocations/{consumer}")
    if found is None:
        raise NotPrepared(f"Allocation {consumer} is gone.")
    return found


def allocated(claim: _Row, driver: str, pool: str) -> list[_Row]:
    """The devices of a pool that Kubernetes has allocated to a claim."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results: Iterable[_Row] = (allocation.get("devices") or {}).get("results") or ()
    return [each for each in results if (each["driver"], each["pool"]) == (driver, pool)]


def held(claim: _Row, driver: str, pool: str) -> list[_Row]:
    """The devices of a pool that a claim has, and does not only watch."""
    return [each for each in allocated(claim, driver, pool) if not each.get("adminAccess")]


def _provider(result: _Row) -> str:
    provider = slices.provider_of(result["device"])
    if provider is None:
        raise NotPrepared(f"{result['device']} is not a device of this driver.")
    return provider


def _is_of(allocation: _Row, providers: Sequence[str]) -> bool:
    """True if an allocation that is Active is of just these providers."""
    groups = {each["group"] for each in allocation["accelerators"]}
    return groups == set(range(len(providers))) and all(
        each["device_rp_uuid"] == providers[each["group"]] for each in allocation["accelerators"]
    )


def _given(number: int, asked: _AskedRequest, allocation: _Row) -> Given:
    own = [each for each in allocation["accelerators"] if each["group"] == number]
    names = [each["attach_handle_info"].get("cdi_device") for each in own]
    if not names or None in names:
        raise NotPrepared(
            f"Containers cannot be given {asked.device}: see [agent] cdi_dir of its host."
        )
    places = [inventory.handle_address(each) for each in own]
    one = places[0] if len(places) == 1 else None
    return Given(asked=asked, cdi_devices=tuple(names), address=one)


def _refuse_held(known: inventory.NodeInventory, watched: Sequence[_AskedRequest]) -> None:
    """Raise NotPrepared if a device to be watched is not Kubernetes', or a guest has some of it."""
    for each in watched:
        part = known.part(each.provider)
        if part is None:
            raise NotPrepared(f"Provider {each.provider} does not belong to Kubernetes now.")
        if part.left < part.total:
            raise NotPrepared(f"{each.device} is held by others, or is not clean yet.")
