# SPDX-License-Identifier: Apache-2.0
"""Processing accelerators of any vendor for which there is no driver of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from oslo_config import cfg

from cyborg.drivers import accel_nodes, base, pci
from cyborg.drivers.pci import cleaning, kinds

#: What the products of a vendor have in common, in resource classes: one driver of the kernel's.
_FAMILIES = {"1022": "AMDXDNA", "17cb": "QAIC", "1ac1": "APEX", "1e52": "TENSTORRENT"}


class AccelDriver(pci.PciDriver):
    """Reports what no other enabled driver matches, of three kinds, and what is no PCI function.

    These are what is known as an accelerator by class, vendor or ids, and functions of any class
    for which the kernel's driver has made a device that computes, or renders without a display.
    """

    match = (pci.Match(),)
    type = "AICHIP"
    resource_class = "CUSTOM_ACCEL"
    expose = "vfs"
    group = "accel_driver"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        #: The resource class of each function that it matches.
        self._classes: dict[str, str] = {}

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        """Every accelerator; a list that selects PCI functions selects nothing else."""
        yield from super().discover(host)
        if all(each.exclude for each in self._specs):
            yield from accel_nodes.devices(host.name)

    def health(self, device: base.Device, host: base.Host) -> str | None:
        """As any driver's, and that what is no PCI function cannot be cleaned if it must be."""
        if not accel_nodes.is_one(device):
            return super().health(device, host)
        return cleaning.why_unclean(self._cleaning, device, host.pci)

    def readings(self, device: base.Device, host: base.Host) -> Mapping[str, float]:
        """As any driver's, of PCI functions."""
        return {} if accel_nodes.is_one(device) else super().readings(device, host)

    def _fits(self, function: pci.Function, functions: pci.Snapshot) -> bool:
        card = functions.get(function.pf or function.address, function)
        self._classes[function.address] = _class(card)
        return self._is_one(card, functions.made(self._shown))

    def named(self, functions: pci.Snapshot) -> Set[str]:
        """As any driver's, without what is of a listed vendor and no accelerator."""
        matched, listed = self.exactness(functions), functions.made(self._listed)
        named = super().named(functions)
        return {each for each in named if each in matched or listed[each].is_exact}

    def why_not_offered(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> base.Refusal | None:
        """As any driver does, of what is an accelerator."""
        why = super().why_not_offered(function, functions)
        if function.address in self.named(functions) or why is None:
            return why
        return why if self._is_one(function, functions.made(self._shown)) else None

    def resource(self, function: pci.Function) -> str:
        """The vendor and the product of the card, whatever driver of the kernel has it."""
        return self._classes.get(function.address, self.resource_class)

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The owner, the vendor and the product of the card."""
        card = functions[function.pf or function.address]
        yield "OWNER_CYBORG"
        yield f"CUSTOM_ACCEL_{kinds.vendor(card)}"
        yield f"CUSTOM_ACCEL_PRODUCT_ID_{card.device}"

    def _is_one(self, card: pci.Function, shown: frozenset[str]) -> bool:
        """True if a card is an accelerator; the kernel shows none that a guest has."""
        if kinds.is_accelerator(card):
            return True
        if card.address in shown:
            self.kept.set("accel", _product(card), True)
            return True
        return card.has_guest_driver and self.kept.get("accel", _product(card)) is True

    def _shown(self, functions: pci.Snapshot) -> frozenset[str]:
        """The functions with a device that computes, or renders without a display."""
        renderers = kinds.shown(functions, kinds.GRAPHICS)
        return kinds.shown(functions, "accel") | {
            address
            for address in renderers.intersection(functions)
            if not functions[address].class_code.startswith(kinds.DISPLAYS)
        }


def _class(card: pci.Function) -> str:
    """The resource class. No driver of the kernel counts: a guest's card has another one."""
    name = _FAMILIES.get(card.vendor) or card.device.upper()
    return f"CUSTOM_{kinds.vendor(card)}_{name}"


def _product(card: pci.Function) -> str:
    return f"{card.vendor}:{card.device}"
