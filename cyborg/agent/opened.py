# SPDX-License-Identifier: Apache-2.0
"""Functions that programs of the host have open though no request of ours has them.

These are functions whose driver gives them to programs: vfio-pci, and RDMA. What a request has is
not among them, whoever has it open: it must stay in the report. So who has what is asked after the
look, and what was known before counts too: it may be released, and still be open for a moment.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Collection, Iterable, Mapping

from oslo_config import cfg

from cyborg import rpc
from cyborg.drivers import base, kept_facts, open_nodes, pci, privileged
from cyborg.drivers.pci import host_use

LOG = logging.getLogger(__name__)

#: Where device nodes are.
DEV = "/dev"
#: Seconds after which it is asked again who has what, though nothing new is open.
_ASK_AGAIN = 300.0
_UNASKED = "a program has it open, and no conductor says now whether a request has it"
_UNSEEN = (
    "It cannot be seen which functions programs of this host have open: set [cyborg_watch] "
    "helper_command"
)


class Opened:
    """Looks at each pass; remembers what requests have. ``asks`` is whether a conductor is asked.

    Without that, as to see what the agent would report, what the agent has kept counts.
    """

    def __init__(self, conf: cfg.ConfigOpts, *, asks: bool) -> None:
        self._conf = conf
        self._asks = asks
        self._asked_at = -math.inf
        self._kept = kept_facts.KeptFacts(conf, "held")
        self._likely: set[int] = set()
        self._warned = False

    def look(self, functions: pci.Snapshot, claimed: Iterable[str]) -> host_use.Uses:
        """The functions among ``claimed``, with who has them open."""
        nodes = {each: _nodes(functions[each], functions) for each in claimed if each in functions}
        nodes = {each: its for each, its in nodes.items() if its}
        try:
            holders = self._holders(_union(nodes.values())) if nodes else {}
        except Exception as exc:  # noqa: BLE001 - the helper fails in many ways
            why = f"it cannot be told who has it open: {exc}"
            return host_use.Uses(used={}, unknown=dict.fromkeys(nodes, why))
        open_nodes_of = {each: its & holders.keys() for each, its in nodes.items()}
        known, now = self._held({each for each, its in open_nodes_of.items() if its})
        # A guest has all functions of an IOMMU group open, or none.
        ours = _union(its for each, its in nodes.items() if each in known or each in (now or ()))
        said = {
            each: "process {} ({}) of the host has {} open, and no request has it; end that "
            "process to give it to guests".format(*holders[min(its)], min(its))
            for each, its in open_nodes_of.items()
            if its and not its & ours
        }
        if now is None:
            return host_use.Uses(used={}, unknown=dict.fromkeys(said, _UNASKED))
        return host_use.Uses(used=said)

    def _held(self, opened: Collection[str]) -> tuple[Collection[str], Collection[str] | None]:
        """The functions that requests had, and those that they have; None if that is not known."""
        known: dict[str, str] = self._kept.get("held", "functions") or {}
        is_due = time.monotonic() > self._asked_at + _ASK_AGAIN
        if not (self._asks and opened and (is_due or not known.keys() >= set(opened))):
            return known, known
        held = rpc.held_handles(self._conf, self._conf.host, by_place=True)
        if held is None:
            return known, None
        self._asked_at = time.monotonic()
        now = {base.place(json.loads(info)).split(" ")[0]: guest for info, guest in held.items()}
        self._kept.set("held", "functions", now)
        self._kept.save()
        return known, now

    def _holders(self, nodes: Collection[str]) -> Mapping[str, tuple[int, str]]:
        found: Mapping[str, tuple[int, str]]
        if privileged.watching.conf.helper_command:
            found = privileged.node_holders(sorted(nodes), sorted(self._likely))
        else:
            found = open_nodes.holders(nodes, self._likely)
            if os.geteuid() != 0 and not self._warned:
                self._warned = True
                LOG.warning(_UNSEEN)
        self._likely = {number for number, _name in found.values()}
        return found


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)


def _nodes(function: pci.Function, functions: pci.Snapshot) -> frozenset[str]:
    """The device nodes by which a program has a function; none if it certainly has not."""
    address, group = function.address, function.iommu_group
    try:
        if function.has_guest_driver and functions.text(address, "enable") != "0":
            names = functions.names(address, "vfio-dev")
            groups = [f"{DEV}/vfio/{group}", f"{DEV}/vfio/noiommu-{group}"] if group else []
            return frozenset([*groups, *(f"{DEV}/vfio/devices/{name}" for name in names)])
        if function.class_code.startswith("02") and function.driver and not function.vfs:
            names = functions.names(address, "infiniband_verbs")
            return frozenset(f"{DEV}/infiniband/{name}" for name in names)
    except (OSError, pci.Vanished):
        pass
    return frozenset()
