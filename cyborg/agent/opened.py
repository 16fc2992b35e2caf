# SPDX-License-Identifier: Apache-2.0
"""Functions that programs of the host have open though no request of ours has them.

These are functions whose driver gives them to programs: vfio-pci, and RDMA. What a request has is
not among them, whoever has it open: it must stay in the report. So who has what is asked after the
look, and what was known before counts too: it may be released, and still be open for a moment.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from oslo_config import cfg

from cyborg import rpc
from cyborg.agent import discovery
from cyborg.drivers import base, kept_facts, open_nodes, pci, privileged
from cyborg.drivers.pci import host_use

LOG = logging.getLogger(__name__)

#: Where device nodes are.
DEV = "/dev"
#: Of most hosts it is not there, so no function of them is looked at for it.
_VERBS = "/sys/class/infiniband_verbs"
#: Seconds after which it is asked again who has what, though nothing new is open.
_ASK_AGAIN = 300.0
#: And between two looks at guests, of which both must show one that runs without its function.
_BETWEEN_CHECKS = 60.0
_ABSENT = "guest {} runs without PCI function {}, which it has: restart the guest"
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
        self._next_check = -math.inf
        #: Functions whose guests ran without them at the last check, and those at two of them.
        self._suspects: Mapping[str, str] = {}
        self._absent: Mapping[str, str] = {}
        self._warn_once = functools.cache(LOG.warning)

    def look(self, functions: pci.Snapshot, matched: Iterable[str]) -> host_use.Uses:
        """The functions among ``matched``, with who has them open."""
        present = [each for each in matched if each in functions]
        lent = {each for each in present if _is_lent(functions[each], functions)}
        nodes = {each: _nodes(functions[each], functions) for each in present}
        nodes = {each: its for each, its in nodes.items() if its}
        try:
            holders = self._holders(_union(nodes.values())) if nodes else {}
        except Exception as exc:  # noqa: BLE001 - the helper fails in many ways
            why = f"it cannot be told who has it open: {exc}"
            held = frozenset(self._known())
            return host_use.Uses(used={}, unknown=dict.fromkeys(nodes, why), held=held)
        open_nodes_of = {each: its & holders.keys() for each, its in nodes.items()}
        known, now = self._held(lent | {each for each, its in open_nodes_of.items() if its})
        held = frozenset([*known, *(now or ())])
        # A guest has all functions of an IOMMU group open, or none.
        ours = _union(its for each, its in nodes.items() if each in known or each in (now or ()))
        said = {
            each: "process {} ({}) of the host has {} open, and no request has it; end that "
            "process to give it to guests".format(*holders[min(its)], min(its))
            for each, its in open_nodes_of.items()
            if its and not its & ours
        }
        if now is None:
            return host_use.Uses(used={}, unknown=dict.fromkeys(said, _UNASKED), held=held)
        return host_use.Uses(used=said, held=held)

    def noted(self, findings: discovery.Findings) -> discovery.Findings:
        """The findings with what guests run without, though they have it: their devices are sick.

        Of a device that has more than the one function only the log tells: the rest is sound.
        """
        if findings.functions is not None and time.monotonic() > self._next_check:
            self._next_check = time.monotonic() + _BETWEEN_CHECKS
            self._check(findings.functions)
        devices = {
            name: tuple(map(self._noted, found)) if self._absent else found
            for name, found in findings.devices.items()
        }
        return replace(findings, devices=devices)

    def _noted(self, device: base.Device) -> base.Device:
        places = [_address(each.attach_info) for each in device.handles]
        guest = self._absent.get(places[0]) if len(places) == 1 else None
        if guest is None or device.unhealthy is not None:
            return device
        return replace(device, unhealthy=_ABSENT.format(guest, places[0]))

    def _check(self, functions: pci.Snapshot) -> None:
        """Look which guests run without a function; ask a conductor whether they still have it."""
        known = self._known()
        try:
            running = self._guests({guest for guest in known.values() if guest})
            suspects = {
                each: guest
                for each, guest in known.items()
                if guest in running
                and each in functions
                and _vfio_nodes(functions[each], functions).isdisjoint(running[guest])
            }
        except Exception as exc:  # noqa: BLE001 - the helper fails in many ways
            LOG.info("Cannot see which functions guests have open: %s", exc)
            return
        again = suspects.items() & self._suspects.items()
        self._suspects = suspects
        held = self._ask() if again else {}
        if held is not None:
            absent = dict(again & held.items())
            for each in absent.keys() - self._absent.keys():
                LOG.warning(_ABSENT.format(absent[each], each))
            self._absent = absent

    def _known(self) -> dict[str, str]:
        """The functions that requests had when that was last asked, each with its guest."""
        return self._kept.get("held", "functions") or {}

    def _held(self, opened: Collection[str]) -> tuple[Collection[str], Collection[str] | None]:
        """The functions that requests had, and those that they have; None if that is not known."""
        known = self._known()
        is_due = time.monotonic() > self._asked_at + _ASK_AGAIN
        if not (self._asks and opened and (is_due or not known.keys() >= set(opened))):
            return known, known
        return known, self._ask()

    def _ask(self) -> dict[str, str] | None:
        held = rpc.held_handles(self._conf, self._conf.host, by_place=True)
        if held is None:
            return None
        self._asked_at = time.monotonic()
        now = {_address(json.loads(info)): guest for info, guest in held.items()}
        self._kept.set("held", "functions", now)
        self._kept.save()
        return now

    def _guests(self, instances: Collection[str]) -> Mapping[str, Collection[str]]:
        if privileged.watching.conf.helper_command:
            found: Mapping[str, Collection[str]] = privileged.guests(sorted(instances))
            return found
        return open_nodes.guests(instances)

    def _holders(self, nodes: Collection[str]) -> Mapping[str, tuple[int, str]]:
        found: Mapping[str, tuple[int, str]]
        if privileged.watching.conf.helper_command:
            found = privileged.node_holders(sorted(nodes), sorted(self._likely))
        else:
            found = open_nodes.holders(nodes, self._likely)
            if os.geteuid() != 0:
                self._warn_once(_UNSEEN)
        self._likely = {number for number, _name in found.values()}
        return found


def _address(info: Mapping[str, str]) -> str:
    """The PCI function of a handle, or else what tells the handle from others."""
    return base.place(info).split(" ")[0]


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)


def _is_lent(function: pci.Function, functions: pci.Snapshot) -> bool:
    """True if a network card may have an interface or an RDMA device in another namespace."""
    try:
        return functions.lent(function) is not None
    except OSError:
        return True


def _nodes(function: pci.Function, functions: pci.Snapshot) -> frozenset[str]:
    """The device nodes by which a program has a function; none if it certainly has not."""
    address = function.address
    try:
        if function.has_guest_driver and functions.text(address, "enable") != "0":
            return _vfio_nodes(function, functions)
        is_port = function.class_code.startswith("02") and function.driver and not function.vfs
        if is_port and functions.names("", _VERBS):
            names = functions.names(address, "infiniband_verbs")
            return frozenset(f"{DEV}/infiniband/{name}" for name in names)
    except (OSError, pci.Vanished):
        pass
    return frozenset()


def _vfio_nodes(function: pci.Function, functions: pci.Snapshot) -> frozenset[str]:
    group = function.iommu_group
    names = functions.names(function.address, "vfio-dev")
    groups = [f"{DEV}/vfio/{group}", f"{DEV}/vfio/noiommu-{group}"] if group else []
    return frozenset([*groups, *(f"{DEV}/vfio/devices/{name}" for name in names)])
