# SPDX-License-Identifier: Apache-2.0
"""Intel Gaudi processors, formerly of Habana Labs, given out whole."""

from __future__ import annotations

from collections.abc import Iterator

from cyborg.drivers import pci
from cyborg.drivers.pci import faults, sysfs

#: Generations by the ids of their functions.
_GENERATIONS = {
    "0001": "GOYA",
    "1000": "GAUDI",
    "1010": "GAUDI",
    "1020": "GAUDI2",
    "1060": "GAUDI3",
}
_DRIVER = "habanalabs"
#: Where the driver's devices are before there was a class of accelerators.
_FORMER = "/sys/class/habanalabs"
_BROKEN = ("malfunction", "disabled")
#: Of older kernels too; they differ in blanks and in the upper case.
_STATES = (
    *_BROKEN,
    "operational",
    "in reset",
    "needs reset",
    "in device creation",
    "in reset after device release",
)


class HabanaDriver(pci.PciDriver):
    """Reports each processor."""

    match = (pci.Match(vendor="1da3", class_code="1200*"),)
    type = "AICHIP"
    resource_class = "CUSTOM_GAUDI"
    group = "habana_driver"

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The owner, the generation if it is known, and the product."""
        yield "OWNER_CYBORG"
        if function.device in _GENERATIONS:
            yield f"CUSTOM_AICHIP_{_GENERATIONS[function.device]}"
        yield f"CUSTOM_AICHIP_PRODUCT_ID_{function.device}"

    def attributes(self, function: pci.Function, functions: pci.Snapshot) -> pci.Facts:
        """Facts that the host's driver habanalabs shows."""
        places = _places(function, functions)
        shown = (functions.text(function.address, f"{each}armcp_ver") for each in places)
        return {"firmware": next(filter(None, shown), None)}

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """The host's driver has given the processor up."""
        if function.driver != _DRIVER:
            return None
        for place in _places(function, functions):
            if functions.if_there(function.address, f"{place}status") is not None:
                status = functions.required_state(function.address, f"{place}status", _STATES)
                if status in _BROKEN:
                    return f"Gaudi {function.address} is in status {status}"
                break
        return None


def _places(function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
    """The places of a processor's files by the driver's release: it, or its device of a class."""
    yield ""
    yield from (f"accel/{name}/" for name in functions.names(function.address, "accel"))
    for name in sysfs.listing(_FORMER):
        if faults.function_of_node(name) == function.address:
            yield f"{_FORMER}/{name}/"
