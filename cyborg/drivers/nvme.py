# SPDX-License-Identifier: Apache-2.0
"""NVMe controllers that the operator lists, given out whole with their namespaces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from cyborg.drivers import declarative, pci

CLASS = "0108*"
#: A namespace, or this controller's way to one that others have too.
_NAMESPACE = re.compile(r"nvme\d+(c\d+)?n\d+")
_SECTORS_OF_A_MIB = 2048


class NvmeController(declarative.PciDriver):
    """What NVMe controllers of every vendor have in common."""

    def attributes(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> Mapping[str, str | int | None]:
        """What the host's driver tells while it has the controller."""
        facts: dict[str, str | int | None] = {}
        for path in _controllers(function, functions):
            namespaces = [
                name
                for name in functions.names(function.address, path)
                if _NAMESPACE.fullmatch(name)
            ]
            sizes = [
                functions.number(function.address, f"{path}/{name}/size") or 0
                for name in namespaces
            ]
            facts = {
                "product": functions.text(function.address, f"{path}/model"),
                "serial": functions.text(function.address, f"{path}/serial"),
                "firmware": functions.text(function.address, f"{path}/firmware_rev"),
                "namespaces": len(namespaces),
                "capacity_mib": sum(sizes) // _SECTORS_OF_A_MIB,
            }
        return facts

    def ailment(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """The kernel gives up a controller that answers no more."""
        for path in _controllers(function, functions):
            if functions.text(function.address, f"{path}/state") == "dead":
                return f"NVMe controller {function.address} is dead"
        return None


class NvmeDriver(NvmeController):
    """Reports the controllers that ``[nvme] device_spec`` lists, and no other."""

    match = (declarative.Match(class_code=CLASS),)
    type = "NVME"
    resource_class = "CUSTOM_NVME"
    listed = True
    group = "nvme"

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The owner, vendor and product."""
        del functions
        yield "OWNER_CYBORG"
        yield f"CUSTOM_NVME_VENDOR_ID_{function.vendor}"
        yield f"CUSTOM_NVME_PRODUCT_ID_{function.device}"


def _controllers(function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
    for name in functions.names(function.address, "nvme"):
        yield f"nvme/{name}"
