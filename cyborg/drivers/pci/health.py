# SPDX-License-Identifier: Apache-2.0
"""The health of PCI devices, as sysfs shows it.

Every changed sentence costs a report, so no sentence has a number that keeps changing.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator, Mapping

from oslo_config import cfg

from cyborg.drivers import base, kept_facts
from cyborg.drivers.pci import facts, faults
from cyborg.drivers.pci.snapshot import Function, Snapshot, Vanished, join

#: A driver's own check of its devices: a sentence, or None.
WhyUnhealthy = Callable[[Function, Snapshot], str | None]


class Health:
    """Checks devices by the options of ``[pci_health]``; remembers the functions of each card."""

    def __init__(self, conf: cfg.ConfigOpts, kept: kept_facts.KeptFacts) -> None:
        # None of them changes while we run, and oslo.config takes long to look one up.
        self._options = types.SimpleNamespace(**conf.pci_health)
        self._parts: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self.faults = faults.FaultLog(kept)

    def why_unhealthy(
        self, device: base.Device, functions: Snapshot, own_check: WhyUnhealthy
    ) -> str | None:
        """The fault of a device as a sentence, or None. ``own_check`` is the driver's."""
        address = join(device.control_path.cpid_info)
        given = {join(each.attach_info) for each in device.handles if each.attach_type == "PCI"}
        sentences = [
            f"PCI function {part} is missing from the bus"
            for part in self._lost_parts(device, address, given, functions)
        ]
        function = functions.get(address)
        try:
            if function is not None and function.pf is not None:
                function = functions.get(function.pf, function)
            if function is not None:
                sentences += self._problems(function, given, functions)
                own = own_check(functions[address], functions)
                sentences += [own] if own is not None else []
        except Vanished:
            sentences.append(f"PCI function {address} is missing from the bus")
        return "; ".join(dict.fromkeys(sentences)) or None

    def _lost_parts(
        self, device: base.Device, address: str, given: set[str], functions: Snapshot
    ) -> list[str]:
        """Functions of a card that vanished while others stayed. Virtual ones may come and go."""
        slot = address.rpartition(".")[0]
        whole = {
            part
            for part in given
            if part.rpartition(".")[0] == slot and part in functions and functions[part].pf is None
        }
        with self._lock:
            # A different card in the same slot has functions of its own.
            card = f"{address} {device.vendor} {device.model}"
            known = self._parts.setdefault(card, {address}) | whole
            self._parts[card] = known
        return sorted(known - functions.keys())

    def _problems(
        self, function: Function, given: set[str], functions: Snapshot
    ) -> Iterator[str]:
        address = function.address
        if self._options.driver_unbound and address not in given and function.driver is None:
            yield f"PCI function {address} has no driver"
        link = facts.required_link(function, functions)
        if link is not None:
            yield from self._link_problems(address, link)
        options = self._options
        if not (options.logged_faults or options.aer_fatal_errors or options.aer_nonfatal_errors):
            return
        if options.logged_faults:
            self.faults.read(functions)
        ports = facts.ports_of_card(function, functions)
        logged = {at: self.faults.of(at) for at in ports}
        if options.logged_faults:
            for word in faults.present(logged[address], function.driver):
                yield f"The kernel has logged a fault of PCI function {address}: {word}"
        yield from self._counted(address, logged, functions)

    def _counted(
        self, address: str, logged: Mapping[str, faults.Logged], functions: Snapshot
    ) -> Iterator[str]:
        """PCIe errors at the ports of a card, as AER has counted them or the log has them."""
        for kind, said, threshold in (
            ("fatal", "Fatal", self._options.aer_fatal_errors),
            ("nonfatal", "Non-Fatal", self._options.aer_nonfatal_errors),
        ):
            if threshold and threshold <= max(
                facts.errors(logged, functions, kind),
                *(faults.times(each, said) for each in logged.values()),
            ):
                times = f"{threshold} or more" if threshold > 1 else "a"
                noun = "errors" if threshold > 1 else "error"
                yield f"PCI function {address} has had {times} {kind} PCIe {noun}"

    def _link_problems(self, address: str, link: facts.Link) -> Iterator[str]:
        if not link.is_up:
            yield f"PCI function {address} does not answer: its link is down"
            return
        if self._options.link_width and link.is_narrow:
            yield (f"The link of PCI function {address} has {link.width} lanes of {link.max_width}")
        if self._options.link_speed and link.is_slow:
            yield (
                f"The link of PCI function {address} runs at {link.speed} instead of "
                f"{link.max_speed}"
            )
