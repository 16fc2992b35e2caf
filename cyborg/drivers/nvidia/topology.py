# SPDX-License-Identifier: Apache-2.0
"""NVLink between NVIDIA GPUs, as NVIDIA's tool shows it.

The tool takes seconds and opens each GPU that NVIDIA's driver has, so no discovery pass waits for
it: it is asked once after each start of the host, beside the passes, and what it has said is kept.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oslo_config import cfg

from cyborg.drivers import card_tools, kept_facts, pci, privileged
from cyborg.drivers.pci import sysfs

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: The kind of the kept facts.
_KIND = "nvlink"
#: Seconds after which the tool may be asked once more if it did not show every GPU.
_PATIENCE = 3600.0
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU\d{1,4}")
_NVLINK = re.compile(r"NV(\d{1,3})")
#: A line of ``--query-gpu=index,pci.bus_id``: ``0, 00000000:3B:00.0``.
_PLACE = re.compile(
    r"(?P<index>\d{1,4}), (?P<domain>[0-9a-f]{8}):(?P<rest>[0-9a-f]{2}:[01][0-9a-f]\.[0-7])"
)


@dataclass(frozen=True, slots=True)
class _Links:
    """The GPUs that one has links to, and the smallest address of all that are connected."""

    group: str
    peers: Mapping[str, int]


class Topology:
    """Which GPUs of the host NVLink connects. A GPU that a guest has keeps what was read before."""

    def __init__(self, conf: cfg.ConfigOpts, kept: kept_facts.KeptFacts) -> None:
        self._conf = conf
        self._is_wanted: bool = conf.gpu_devices.read_topology
        self._kept = kept
        self._links: Mapping[str, _Links] = {}
        #: If the tool is to be asked: the GPUs of the last look with their ids, and the boot.
        self._wanted: tuple[Mapping[str, str], str] | None = None
        self._asking: threading.Thread | None = None
        self._next = -math.inf
        #: Why the tool has shown nothing, or None.
        self.problem: str | None = None

    def look(self, functions: pci.Snapshot) -> None:
        """Take in what is known, and see whether that is so of each GPU."""
        if not self._is_wanted:
            return
        self._wanted = None
        cards = {
            each.address: each
            for each in functions.of_vendor("10de")
            if each.pf is None and each.class_code.startswith("03")
        }
        known = {address: self._known(card) for address, card in cards.items()}
        self._links = _connected({address: fact["peers"] for address, fact in known.items()})
        boot = sysfs.optional(_BOOT_ID)
        here = [address for address, card in cards.items() if card.driver == "nvidia"]
        if boot and len(here) > 1 and any(known[address]["boot"] != boot for address in here):
            self._wanted = {address: _ids(card) for address, card in cards.items()}, boot

    def ask(self) -> None:
        """Have the tool asked if the last look has not found all links of each GPU."""
        is_busy = self._asking is not None and self._asking.is_alive()
        if self._wanted is None or is_busy or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PATIENCE
        self._asking = threading.Thread(
            target=self._read, args=self._wanted, name="nvlink", daemon=True
        )
        self._asking.start()

    def attributes(self, card: pci.Function) -> dict[str, str | int]:
        """The facts of a card; none without any link."""
        links = self._links.get(card.address)
        if links is None:
            return {}
        return {
            "link_group": links.group,
            "nvlink_peers": " ".join(sorted(links.peers)),
            "nvlink_links": min(links.peers.values()),
        }

    def _known(self, card: pci.Function) -> dict[str, Any]:
        kept = self._kept.get(_KIND, card.address)
        if not isinstance(kept, dict) or kept.get("ids") != _ids(card):
            return {"boot": None, "peers": {}}
        return kept

    def _read(self, cards: Mapping[str, str], boot: str) -> None:
        """Ask the tool, and keep what it says of these cards."""
        try:
            matrix, places = privileged.gpu_topology(
                self._conf.programming.tool_timeout, card_tools.lock_file(self._conf, "topology")
            )
            found = peers(matrix, places)
        except Exception as exc:  # noqa: BLE001 - whatever the helper raises; nothing depends on it
            self.problem = f"[gpu_devices] read_topology has no effect: {exc}"
            return
        for address in found.keys() & cards.keys():
            before = self._kept.get(_KIND, address)
            # What was read of GPUs that are a guest's now.
            old = before["peers"] if before and before["ids"] == cards[address] else {}
            links = {other: old[other] for other in old if other not in found} | found[address]
            fact = {"ids": cards[address], "boot": boot, "peers": links}
            self._kept.set(_KIND, address, fact)
        self._kept.save()
        self.problem = None


def peers(matrix: str, places: str) -> dict[str, dict[str, int]]:
    """The number of links that each GPU has to others, by their addresses.

    ``matrix`` is what ``topo -m`` prints, and ``places`` the indexes with the addresses.

    :raises ValueError: it is something else
    """
    addresses = {
        f"GPU{place['index']}": f"{place['domain'].lstrip('0').zfill(4)}:{place['rest']}"
        for line in places.lower().splitlines()
        if (place := _PLACE.fullmatch(line.strip()))
    }
    lines = _ESCAPE.sub("", matrix).splitlines()
    rows = [[cell.strip() for cell in line.split("\t")] for line in lines]
    header = next((row for row in rows if row[0] == "" and row[1:2] == ["GPU0"]), [])
    columns = {name: number for number, name in enumerate(header) if _GPU.fullmatch(name)}
    of_gpus = {row[0]: row for row in rows if row[0] in columns}
    if not columns or of_gpus.keys() != columns.keys() or not columns.keys() <= addresses.keys():
        raise ValueError("NVIDIA's tool has shown no matrix of the GPUs")
    found: dict[str, dict[str, int]] = {}
    for name, row in of_gpus.items():
        links = {
            addresses[other]: int(link.group(1))
            for other, number in columns.items()
            if (link := _NVLINK.fullmatch("".join(row[number : number + 1])))
        }
        found[addresses[name]] = links
    if any(found[other].get(one) != count for one in found for other, count in found[one].items()):
        raise ValueError("NVIDIA's tool has shown links with one end")
    return found


def _connected(linked: Mapping[str, Mapping[str, int]]) -> dict[str, _Links]:
    """The links of each GPU that has any; a GPU that is gone or was replaced has none."""
    both = {
        one: {other: count for other, count in others.items() if one in linked.get(other, {})}
        for one, others in linked.items()
    }
    found: dict[str, _Links] = {}
    for first in sorted(both):
        left = [first] if both[first] and first not in found else []
        while left:
            each = left.pop()
            if each not in found:
                found[each] = _Links(first, both[each])
                left.extend(both[each])
    return found


def _ids(card: pci.Function) -> str:
    return f"{card.vendor}:{card.device}"
