# SPDX-License-Identifier: Apache-2.0
"""The devices of this host that belong to Kubernetes, by Cyborg's record.

A device belongs to Kubernetes if an administrator has tainted it for that, or its host: then
Cyborg gives it to no consumer that does not tolerate taints, so not to Nova's servers.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from oslo_config import cfg

from cyborg.common import handle_words, program_modes
from cyborg.common import request_groups as groups
from cyborg.kube import accelerators, pci

_Row = Mapping[str, Any]

#: Why nothing of a part is to be given to further pods; the keys of taints, behind the driver's.
UNHEALTHY, MISSING, DISABLED, DRAINED = "unhealthy", "missing", "disabled", "drained"
HOST_DOWN, WITHHELD, PROGRAMMING, BLANK = "host-down", "withheld", "programming", "not-programmed"
IN_USE, CYBORG_DOWN = "in-use", "cyborg-down"

#: Kubernetes' standard attributes, by which devices of several drivers are compared.
STANDARD = "resource.kubernetes.io"
PCI_BUS_ID, PCIE_ROOT, NUMA_NODE = (
    f"{STANDARD}/{name}" for name in ("pciBusID", "pcieRoot", "numaNode")
)

#: Keys of Cyborg's attributes that say how it works, or that are published in another form.
_OWN_KEYS = {"rc", "cdi_kind", "board_functions", "pci_address", "numa_node", "link"}
_TRAIT, _BOARD_FUNCTIONS, _LAYOUT = "trait", "board_functions", "layout_"
#: Types of attach handles that are PCI functions; the handles of shares name their card.
_FUNCTIONS = {"PCI", "TEST_PCI"}
#: Such as ``16.0 GT/s x16``.
_LINK = re.compile(r"([0-9]+)(?:\.([0-9]))? GT/s x([0-9]{1,2})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedPart:
    """A deployable of this host that belongs to Kubernetes, with what is true of all of it."""

    #: The resource provider.
    provider: str
    device_type: str
    resource_class: str
    #: How many accelerators it has, and how many of them no other consumer holds.
    total: int
    left: int
    #: How many of them go together.
    unit: int = 1
    #: The deployable, how it is programmed, if it is, and the program that it runs, in any words.
    deployable: str = ""
    mode: str | None = None
    runs: frozenset[str] = frozenset()
    #: The layouts that its card can have, and how many accelerators it would have in each.
    layouts: Mapping[str, int] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    facts: Mapping[str, str | int] = field(default_factory=dict)
    #: Why no further pod may have any of it, by what it is: a sentence, or nothing.
    closed: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_shares(self) -> bool:
        """True if its accelerators are shares of one card."""
        return self.resource_class == handle_words.SHARE_CLASS

    def group(self, amount: int | None = None) -> dict[str, str]:
        """The request group that so many of its accelerators fit: as many as go together."""
        asked = {f"{groups.RESOURCES}:{self.resource_class}": str(amount or self.unit)}
        asked[groups.TOLERATE_TAINT] = "true"
        if groups.TWO_HANDLES in self.traits:
            asked[f"{groups.TRAIT}:{groups.TWO_HANDLES}"] = groups.REQUIRED
        return asked


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInventory:
    """The parts of this host that belong to Kubernetes."""

    #: The name of the host's root provider.
    hostname: str
    parts: tuple[OfferedPart, ...]
    #: The allocations of claims of this host, by their consumers.
    allocations: Mapping[str, _Row] = field(default_factory=dict)

    def part(self, provider: str) -> OfferedPart | None:
        """The part of that provider; None if it is not Kubernetes'."""
        return next((each for each in self.parts if each.provider == provider), None)

    def unsure(self) -> NodeInventory:
        """The parts while Cyborg does not answer: none is for further pods."""
        why = {CYBORG_DOWN: "Cyborg does not answer."}
        closed = [replace(each, closed={**each.closed, **why}) for each in self.parts]
        return replace(self, parts=tuple(closed))


def read(conf: cfg.ConfigOpts, api: accelerators.KubeApi) -> NodeInventory:
    """Ask Cyborg.

    :raises accelerators.ApiFailed: it does not say
    """
    host = api.find(f"/hosts/{conf.host}")
    if host is None:
        # It was removed from Cyborg: nothing of it can be given out.
        return NodeInventory(hostname=conf.host, parts=())
    hostname = host["hostname"]
    devices = [
        each
        for each in api.rows("devices", hostname=hostname)
        if _is_ours(host, each, conf.kube.taint_reason)
    ]
    if not devices:
        return NodeInventory(hostname=hostname, parts=())
    ours = {each["uuid"]: each for each in own_allocations(conf, api)}
    every = list(api.rows("attach_handles", hostname=hostname))
    handles = _by(every, "deployable_uuid")
    held = {_form(each) for each in every if each["arq_uuid"]}
    has_some = (each for each in api.rows("deployables", hostname=hostname) if _has_some(each))
    parts = _by(has_some, "device_uuid")
    return NodeInventory(
        hostname=hostname,
        parts=tuple(
            _in_one_form(
                _part(host, device, part, handles[part["uuid"]], ours.keys()),
                {(device, not nodes) for device, nodes in map(_form, handles[part["uuid"]])} & held,
            )
            for device in devices
            for part in parts[device["uuid"]]
        ),
        allocations=ours,
    )


def _form(handle: _Row) -> tuple[str, bool]:
    """The device of a handle, and whether the handle is device nodes."""
    return handle["device_uuid"], handle["attach_handle_type"] == handle_words.NODES


def _in_one_form(part: OfferedPart, others: Set[tuple[str, bool]]) -> OfferedPart:
    """The part; nobody gets any while another part of its card is held in the other form."""
    return replace(part, closed={**part.closed, IN_USE: ""}) if others else part


def _by(rows: Iterable[_Row], key: str) -> Mapping[str, list[_Row]]:
    found = collections.defaultdict(list)
    for each in rows:
        found[each[key]].append(each)
    return found


def _has_some(part: _Row) -> bool:
    """True if a deployable has accelerators, or would in another layout."""
    return bool(part["num_accelerators"] or _layouts(part["attributes"]))


def own_allocations(conf: cfg.ConfigOpts, api: accelerators.KubeApi) -> Iterator[_Row]:
    """The allocations of claims on this host.

    :raises accelerators.ApiFailed: they cannot be read
    """
    return api.rows(
        "allocations", consumer_type=accelerators.CONSUMER_TYPE, consumer_name=conf.host
    )


def _is_ours(host: _Row, device: _Row, reason: str) -> bool:
    # A device that is tainted for another reason is kept from everybody, so from Kubernetes too.
    tainted = device if device["tainted"] else host
    return bool(tainted["tainted"]) and tainted["taint_reason"] == reason


def _part(
    host: _Row, device: _Row, part: _Row, handles: Sequence[_Row], ours: Set[str]
) -> OfferedPart:
    attributes = part["attributes"]
    unit = max(1, int(attributes.get(_BOARD_FUNCTIONS, 1)))
    total = part["num_accelerators"]
    # What guests had before, and what is not clean yet, is held and not for a claim.
    held = [
        each
        for each in handles
        if each["arq_uuid"] and not (each["state"] == "in_use" and each["instance_uuid"] in ours)
    ]
    left = max(0, total - _taken(part, len(held)))
    program = part["program"] or {}
    names = (program.get(key) for key in ("image_uuid", "function_id", "function_name"))
    return OfferedPart(
        provider=part["rp_uuid"],
        device_type=device["type"],
        resource_class=attributes["rc"],
        total=total,
        left=left,
        unit=unit,
        deployable=part["uuid"],
        mode=program.get("mode"),
        runs=frozenset(name for name in names if name),
        layouts=_layouts(attributes),
        traits=frozenset(str(v) for key, v in attributes.items() if key.startswith(_TRAIT)),
        facts=_standard(attributes, handles) | _facts(device, part),
        closed=dict(_closed(host, device, part)) | ({IN_USE: ""} if left < unit else {}),
    )


def _taken(part: _Row, held: int) -> int:
    """How many accelerators nobody else can have now, of which so many are held."""
    # A card with shares may be of one project at a time, and all of it waits until it is clean.
    is_all = held and part["attributes"]["rc"] == handle_words.SHARE_CLASS
    return int(part["num_accelerators"]) if is_all else held


def _layouts(attributes: _Row) -> dict[str, int]:
    found = {key: str(value) for key, value in attributes.items() if key.startswith(_LAYOUT)}
    # An attribute that an administrator has made may have any value.
    return {
        key.removeprefix(_LAYOUT): int(value)
        for key, value in sorted(found.items())
        if value.isascii() and value.isdecimal() and int(value)
    }


def handle_address(handle: _Row) -> str | None:
    """The PCI address of what a handle, or an accelerator, is; None if it is no PCI function."""
    info = handle["attach_handle_info"]
    is_function = handle["attach_handle_type"] in _FUNCTIONS or handle_words.SHARE_KEY in info
    return pci.address(info) if is_function else None


def _standard(attributes: _Row, handles: Sequence[_Row]) -> dict[str, str | int]:
    """Kubernetes' standard attributes.

    A pod is told the address of its own function, so a part of several publishes none.
    """
    places = [handle_address(each) for each in handles]
    card = attributes.get("pci_address") or next(filter(None, places), None)
    facts = {
        PCI_BUS_ID: places[0] if len(set(places)) == 1 else None,
        PCIE_ROOT: pci.root(str(card)) if card else None,
        NUMA_NODE: attributes.get("numa_node"),
    }
    return {key: value for key, value in facts.items() if value is not None}


def _link(text: str) -> dict[str, int]:
    """The link as numbers: MT/s, since GT/s have fractions, and lanes."""
    match = _LINK.fullmatch(text)
    if match is None:
        return {}
    speed = int(match[1]) * 1000 + int(match[2] or 0) * 100
    return {"link_mts": speed, "link_lanes": int(match[3])}


def _facts(device: _Row, part: _Row) -> dict[str, str | int]:
    program = part["program"] or {}
    facts: dict[str, str | int | None] = {
        "type": device["type"],
        "vendor": device["vendor"],
        "model": device["model"],
        "address": device["address"],
        "resource_class": part["attributes"]["rc"],
        "driver": part["driver_name"],
        "function_id": program.get("function_id"),
        "function_name": program.get("function_name"),
    }
    rest = {
        key: value
        for key, value in part["attributes"].items()
        if key not in _OWN_KEYS and not key.startswith((_TRAIT, _LAYOUT))
    }
    found = facts | rest | _link(str(part["attributes"].get("link", "")))
    return {key: value for key, value in found.items() if value is not None and value != ""}


def _closed(host: _Row, device: _Row, part: _Row) -> Iterator[tuple[str, str]]:
    program = part["program"] or {}
    doubtful = program.get("in_doubt", False)
    reasons = {
        UNHEALTHY: (device["health"] != "healthy", device["health_reason"] or "It is unhealthy."),
        MISSING: (device["missing"], "It is gone from its host."),
        DISABLED: (device["status"] != "enabled", device["disabled_reason"]),
        DRAINED: (host["drained"], host["drain_reason"]),
        HOST_DOWN: (host["state"] != "up", "The agent of the host does not report."),
        WITHHELD: (part["withheld_reason"], part["withheld_reason"]),
        PROGRAMMING: (doubtful, None),
        BLANK: (program and not doubtful and _needs_program(program), None),
    }
    return ((what, why or "") for what, (is_so, why) in reasons.items() if is_so)


def _needs_program(program: _Row) -> bool:
    runs = program["image_uuid"] or program["function_id"]
    return program["mode"] in program_modes.FOR_ALL_HANDLES and not runs
