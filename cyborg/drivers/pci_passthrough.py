# SPDX-License-Identifier: Apache-2.0
"""Any PCI device that the operator lists, passed through to guests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cyborg.drivers import pci

#: Names of vendors in traits. The trait of any other vendor has its id.
_VENDORS = {
    "1002": "AMD",
    "10de": "NVIDIA",
    "10ee": "XILINX",
    "144d": "SAMSUNG",
    "15b3": "MELLANOX",
    "19e5": "HUAWEI",
    "1bd4": "INSPUR",
    "8086": "INTEL",
}


class PciPassthroughDriver(pci.PciDriver):
    """Reports the functions that ``[pci] device_spec`` matches, one device each."""

    match = (pci.Match(),)
    type = "PCI"
    resource_class = "CUSTOM_PCI"
    expose = "each"
    listed = True
    group = "pci"

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The traits that device profiles of earlier releases ask for."""
        yield "OWNER_CYBORG"
        yield f"CUSTOM_PCI_{_VENDORS.get(function.vendor, function.vendor)}"
        yield f"CUSTOM_PCI_PRODUCT_ID_{function.device}"

    def attributes(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> Mapping[str, str | int | None]:
        """The kind of function, in Nova's terms."""
        if function.pf is not None:
            return {"dev_type": "type-VF", "parent_addr": function.pf}
        return {"dev_type": "type-PF" if function.sriov_totalvfs else "type-PCI"}

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """The host has a volume or RAID on a disk of the controller.

        It need not be mounted: virtual machines and storage daemons use volumes directly.
        """
        for each in (function, *(functions[vf] for vf in function.vfs if vf in functions)):
            disk = functions.volume(each) if pci.can_carry(each) else None
            if disk is not None:
                return f"The host has a volume or a RAID on {disk} of PCI function {each.address}"
        return None
