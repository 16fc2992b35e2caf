# SPDX-License-Identifier: Apache-2.0
"""Processing accelerators of any vendor for which there is no driver of their own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from oslo_config import cfg

from cyborg.drivers import base, pci
from cyborg.drivers.pci import sysfs

_ACCELERATORS = "/sys/class/accel"
#: Drivers that keep a card for a guest or a program, and tell nothing of its kind.
_HOLDERS = ("vfio", "pci-stub", "uio")
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: Names of vendors in resource classes and traits. Any other vendor has its id there.
_VENDORS = {
    "1014": "IBM",
    "1022": "AMD",
    "1ac1": "CORAL",
    "1ae0": "GOOGLE",
    "1bcf": "NEC",
    "1da3": "HABANA",
    "1e52": "TENSTORRENT",
    "1e60": "HAILO",
    "1ed2": "FURIOSA",
    "1eff": "REBELLIONS",
    "17cb": "QUALCOMM",
    "8086": "INTEL",
}
#: Accelerators whose class does not say so, and whose drivers make no such device.
_KNOWN = frozenset(
    {
        ("1ac1", "089a"),  # Coral Edge TPU
        ("1bcf", "001c"),  # NEC Vector Engine
        ("1e60", "2864"),  # Hailo-8
        *(("8086", f"225{digit}") for digit in "0123456789abcde"),  # Xeon Phi
    }
)


class AccelDriver(pci.PciDriver):
    """Reports what no other enabled driver claims, of three kinds.

    These are functions of the class of processing accelerators, functions of any class for which
    the kernel's driver has made a device in ``/sys/class/accel``, and some products by their ids.
    """

    match = (pci.Match(),)
    type = "AICHIP"
    resource_class = "CUSTOM_ACCEL"
    expose = "vfs"
    group = "accel_driver"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        #: The resource class of each function that it claims.
        self._classes: dict[str, str] = {}

    def _claims(self, functions: pci.Snapshot) -> dict[str, int]:
        shown = _shown(functions)
        claimed = {}
        for address, exactness in super()._claims(functions).items():
            card = functions.get(functions[address].pf or address, functions[address])
            if self._is_one(card, shown):
                claimed[address] = exactness
                self._classes[address] = self._class(card)
        return claimed

    def why_not_offered(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> base.Refusal | None:
        """As any driver does, of what is an accelerator."""
        why = super().why_not_offered(function, functions)
        return why if why is not None and self._is_one(function, _shown(functions)) else None

    def resource(self, function: pci.Function) -> str:
        """The vendor, and the kernel's driver of the card or else its product."""
        return self._classes.get(function.address, self.resource_class)

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The owner, the vendor and the product of the card."""
        card = functions[function.pf or function.address]
        yield "OWNER_CYBORG"
        yield f"CUSTOM_ACCEL_{_vendor(card)}"
        yield f"CUSTOM_ACCEL_PRODUCT_ID_{card.device}"

    def _is_one(self, card: pci.Function, shown: frozenset[str]) -> bool:
        """Whether a card is an accelerator; the kernel shows none that a guest has."""
        if card.class_code.startswith("1200") or (card.vendor, card.device) in _KNOWN:
            return True
        if card.address in shown:
            self.kept.set("accel", _product(card), True)
            return True
        return card.has_guest_driver and self.kept.get("accel", _product(card)) is True

    def _class(self, card: pci.Function) -> str:
        """The resource class, which must stay the same while a guest has the card."""
        if card.driver is not None and not card.driver.startswith(_HOLDERS):
            self.kept.set("kernel_driver", _product(card), card.driver)
        kept = self.kept.get("kernel_driver", _product(card))
        name = kept if isinstance(kept, str) else card.device
        return f"CUSTOM_{_vendor(card)}_{re.sub(r'[^A-Z0-9]', '_', name.upper())}"


def _product(card: pci.Function) -> str:
    return f"{card.vendor}:{card.device}"


def _vendor(card: pci.Function) -> str:
    return _VENDORS.get(card.vendor, card.vendor.upper())


def _shown(functions: pci.Snapshot) -> frozenset[str]:
    """The functions with a device in the kernel's class of accelerators.

    :raises OSError: they cannot be listed
    """
    targets = [sysfs.target(f"{_ACCELERATORS}/{name}") for name in sysfs.listing(_ACCELERATORS)]
    found = [_ADDRESS.findall(target)[-1:] for target in targets]
    if not all(found):
        # One that leads to no function may be of any that shows such a device itself.
        found.append([each for each in functions if _has_child(each, functions)])
    return frozenset(itertools.chain.from_iterable(found))


def _has_child(address: str, functions: pci.Snapshot) -> bool:
    try:
        return bool(functions.names(address, "accel"))
    except (OSError, pci.Vanished):
        return False
