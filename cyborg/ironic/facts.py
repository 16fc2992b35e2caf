# SPDX-License-Identifier: Apache-2.0
"""Nodes and inventories in the format that Ironic publishes, read into values.

What a node says of itself comes from a ramdisk that ran on it, so nothing of it is believed to be
well formed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oslo_utils import uuidutils

from cyborg import rpc
from cyborg.drivers import pci
from cyborg.ironic.api import BadNodeAnswer

#: The name in a node's ``extra`` of the host that the node is for Cyborg.
HOST = "cyborg_host"
#: The most PCI functions that are read of one node.
_FUNCTIONS_MAX = 65536
_TEXT_MAX = 255

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_ID = re.compile(r"(0x)?([0-9a-f]{1,4})", re.ASCII)
_CLASS = re.compile(r"(0x)?([0-9a-f]{1,6})", re.ASCII)
_NUMA = re.compile(r"[0-9]{1,5}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A PCI function as Ironic's inspection hook ``accelerators`` shows it."""

    address: str
    vendor: str
    device: str
    type: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node, and the name of the host that it is for Cyborg."""

    uuid: str
    host: str
    accelerators: tuple[Accelerator, ...] = ()


@dataclass(slots=True)
class NodeFunctions:
    """The PCI functions of a node, by address, and sentences about others."""

    functions: dict[str, pci.Function] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def node_of(answer: Mapping[str, Any]) -> Node:
    """A node of Ironic's API.

    Its host has the name that ``extra`` says, or else that of the node, or else its UUID.

    :raises BadNodeAnswer: it is none
    """
    uuid = answer.get("uuid")
    if not uuidutils.is_uuid_like(uuid):
        raise BadNodeAnswer(f"Ironic shows a node without a UUID: {uuid!r:.40}.")
    uuid = str(uuid).lower()
    host = _mapping(answer.get("extra")).get(HOST) or answer.get("name") or uuid
    if not rpc.is_host_name(host):
        raise BadNodeAnswer(f"Node {uuid}: {host!r:.80} is not a valid host name.")
    found = _mapping(answer.get("properties")).get("accelerators")
    accelerators = (_accelerator(_mapping(each)) for each in _list(found))
    return Node(uuid=uuid, host=str(host), accelerators=tuple(filter(None, accelerators)))


def inventory_of(answer: Mapping[str, Any] | None) -> NodeFunctions:
    """The PCI functions of what Ironic has of an inspection, which may be nothing.

    In-band inspection has them beside the inventory, out-of-band inspection in it.
    """
    document = _mapping(answer)
    listed = _list(_mapping(document.get("plugin_data")).get("pci_devices"))
    listed = listed or _list(_mapping(document.get("inventory")).get("pci_devices"))
    found = NodeFunctions()
    nowhere = unreadable = 0
    for each in map(_mapping, listed[:_FUNCTIONS_MAX]):
        if each.get("bus") is None:
            nowhere += 1
            continue
        function = _function(each)
        if function is None:
            unreadable += 1
        else:
            found.functions[function.address] = function
    if nowhere:
        found.notes.append(
            f"{nowhere} PCI functions have no address, as after out-of-band inspection, and are "
            "left out"
        )
    if unreadable:
        found.notes.append(f"{unreadable} PCI functions cannot be read, and are left out")
    return found


def _function(entry: Mapping[str, Any]) -> pci.Function | None:
    address = _text(entry.get("bus"))
    vendor, device = _digits(entry.get("vendor_id")), _digits(entry.get("product_id"))
    class_code = _CLASS.fullmatch(_text(entry.get("class")))
    if not (_ADDRESS.fullmatch(address) and vendor and device and class_code):
        return None
    numa = _text(entry.get("numa_node_id"))
    return pci.Function(
        address=address,
        vendor=vendor,
        device=device,
        # They are not in the inventory; the kernel shows none in this way.
        subsystem_vendor="0000",
        subsystem_device="0000",
        class_code=class_code[2].zfill(6),
        numa_node=int(numa) if _NUMA.fullmatch(numa) else None,
    )


def _accelerator(entry: Mapping[str, Any]) -> Accelerator | None:
    address = _text(entry.get("pci_address"))
    vendor, device = _digits(entry.get("vendor_id")), _digits(entry.get("device_id"))
    if not (_ADDRESS.fullmatch(address) and vendor and device):
        return None
    return Accelerator(
        address=address,
        vendor=vendor,
        device=device,
        type=str(entry.get("type")).upper(),
        text="".join(filter(str.isprintable, str(entry.get("device_info") or "")))[:_TEXT_MAX],
    )


def _digits(value: object) -> str | None:
    found = _ID.fullmatch(_text(value))
    return found[2].zfill(4) if found else None


def _text(value: object) -> str:
    return str(value).strip().lower()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
