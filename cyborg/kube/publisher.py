# SPDX-License-Identifier: Apache-2.0
"""Makes the ResourceSlices of this node equal to those that are wanted.

Whoever reads a pool takes only the slices of its newest generation, once all of them are there. So
if one changes, all are written with the next generation. All are tried first: if the server refused
one of them half way, nobody could use any device of the node. A device that it names as invalid is
left out, for as long as it stays the same.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import re
from collections.abc import Mapping
from typing import Any

from cyborg.kube.cluster import Cluster, InvalidDocument
from cyborg.kube.slices import SHAREABLE, Spec

LOG = logging.getLogger(__name__)

#: Fields, and the feature gates of the API server without which it drops them.
_GATES = {
    "sharedCounters": "DRAPartitionableDevices",
    "consumesCounters": "DRAPartitionableDevices",
    "taints": "DRADeviceTaints",
    "bindingConditions": "DRADeviceBindingConditions",
    SHAREABLE: "DRAConsumableCapacity",
}
_DEVICE = re.compile(r"spec\.devices\[([0-9]{1,4})\]")


class Publisher:
    """The slices of one node."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._cluster = cluster
        self._node = node
        #: What was wanted of a slice, and what the server has made of it, by its name.
        self._stored: dict[str, tuple[Spec, Spec]] = {}
        #: The fields that the server does not keep.
        self.dropped: set[str] = set()
        #: Devices that the server does not permit, by their names.
        self._invalid: dict[str, Spec] = {}

    def publish(self, wanted: Mapping[str, Spec]) -> bool:
        """Write what differs; whether anything did.

        :raises Unanswered: Kubernetes does not do it; what is missing is written the next time
        """
        while True:
            valid = {name: self._without_invalid(spec) for name, spec in wanted.items()}
            with contextlib.suppress(_LeftOut):
                return self._publish(valid)

    def _without_invalid(self, spec: Spec) -> Spec:
        if "devices" not in spec:
            return spec
        valid = [each for each in spec["devices"] if self._invalid.get(each["name"]) != each]
        return spec | {"devices": valid}

    def _leave_out(self, spec: Spec, why: InvalidDocument) -> bool:
        """Note the devices that are named as invalid; whether there is one."""
        named = {int(match[1]) for field in why.fields if (match := _DEVICE.match(field))}
        devices = dict(enumerate(spec.get("devices", ())))
        for number in sorted(named & devices.keys()):
            device = devices[number]
            LOG.error("Device %s is left out: %s", device["name"], why)
            self._invalid[device["name"]] = device
        return bool(named & devices.keys())

    def _publish(self, wanted: Mapping[str, Spec]) -> bool:
        found = {each["metadata"]["name"]: each for each in self._cluster.slices()}
        generations = {each["spec"]["pool"]["generation"] for each in found.values()}
        is_whole = found.keys() == wanted.keys() and len(generations) <= 1
        if is_whole and all(self._is_right(name, wanted[name], found[name]) for name in wanted):
            return False
        generation = max(generations, default=0) + 1
        self._write(wanted, found, generation)
        for name in found.keys() - wanted.keys():
            self._cluster.delete_slice(name)
        self._stored = {name: self._stored[name] for name in wanted}
        LOG.info("Generation %d of the devices of node %s is published", generation, self._node)
        return True

    def _write(
        self, wanted: Mapping[str, Spec], found: Mapping[str, Spec], generation: int
    ) -> None:
        """Write all slices, after it was tried whether the server permits each of them."""
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._node,
            "uid": self._cluster.node_uid(),
            "controller": True,
        }
        documents = {
            name: _document(name, spec, generation, owner, found.get(name))
            for name, spec in wanted.items()
        }
        for name, document in documents.items():
            try:
                self._cluster.put_slice(document, only_try=True)
            except InvalidDocument as exc:
                if self._leave_out(wanted[name], exc):
                    raise _LeftOut from exc
                raise
        for name, document in documents.items():
            self._note(name, wanted[name], self._cluster.put_slice(document))

    def _is_right(self, name: str, wanted: Spec, found: Mapping[str, Any]) -> bool:
        plain = _plain(found["spec"])
        # A server without a feature drops its fields, and would do so again.
        return plain == wanted or self._stored.get(name) == (wanted, plain)

    def _note(self, name: str, spec: Spec, stored: Spec) -> None:
        plain = _plain(stored["spec"])
        if plain != spec:
            kept = [set(each) for each in _pieces(plain)]
            dropped = set().union(
                *(each.keys() - own for each, own in zip(_pieces(spec), kept, strict=False))
            )
            self.dropped |= dropped
            gates = sorted({_GATES[field] for field in dropped & _GATES.keys()})
            LOG.warning(
                "Kubernetes does not keep all of %s: its API server may be without %s",
                name,
                " and ".join(gates) or "a feature of 1.37",
            )
        self._stored[name] = (copy.deepcopy(spec), plain)


def _pieces(spec: Spec) -> list[Spec]:
    """A slice and its devices: whatever has fields that a server may drop."""
    return [spec, *spec.get("devices", ())]


class _LeftOut(Exception):
    """An invalid device was left out, so that the others can be tried."""


def _document(
    name: str,
    spec: Spec,
    generation: int,
    owner: Mapping[str, Any],
    found: Mapping[str, Any] | None,
) -> Spec:
    metadata: dict[str, Any] = {"name": name, "ownerReferences": [owner]}
    whole = spec | {"pool": spec["pool"] | {"generation": generation}}
    if found is not None:
        metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
        whole = _with_times(whole, found["spec"])
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": whole,
    }


def _with_times(spec: Spec, found: Mapping[str, Any]) -> Spec:
    """The wanted slice, whose taints are as old as they were: from then on pods tolerate them."""
    times = {
        (device["name"], taint["key"], taint["effect"]): taint["timeAdded"]
        for device in found.get("devices", ())
        for taint in device.get("taints", ())
        if "timeAdded" in taint
    }
    kept: Spec = copy.deepcopy(spec)
    for device in kept.get("devices", ()):
        for taint in device.get("taints", ()):
            if time := times.get((device["name"], taint["key"], taint["effect"])):
                taint["timeAdded"] = time
    return kept


def _plain(spec: Mapping[str, Any]) -> Spec:
    """A stored slice without what the server adds."""
    found: Spec = copy.deepcopy(dict(spec))
    found["pool"].pop("generation")
    for device in found.get("devices", ()):
        for taint in device.get("taints", ()):
            taint.pop("timeAdded", None)
    return found
