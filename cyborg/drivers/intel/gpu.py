# SPDX-License-Identifier: Apache-2.0
"""Intel GPUs on cards, such as Data Center GPU Flex and Max and Arc Pro."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cyborg.drivers import base, pci

#: The bus of functions in the processor's package: its own graphics.
_PROCESSORS_BUS = "00"


class IntelGpuDriver(pci.PciDriver):
    """Reports each GPU whole, or its virtual functions as virtual GPUs if it has any."""

    match = (pci.Match(vendor="8086", class_code="03*"),)
    type = "GPU"
    resource_class = "PGPU"
    expose = "vfs"
    group = "intel_gpu_driver"

    def _claims(self, functions: pci.Snapshot) -> dict[str, int]:
        claimed = super()._claims(functions)
        return {
            address: exactness
            for address, exactness in claimed.items()
            if not _is_in_processor(functions[address])
        }

    def why_not_offered(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> base.Refusal | None:
        """As any driver does, and the graphics of a processor."""
        if function.vendor == "8086" and _is_in_processor(function):
            return base.Refusal(reason="it is the processor's own graphics")
        return super().why_not_offered(function, functions)

    def resource(self, function: pci.Function) -> str:
        """PGPU for a whole card, VGPU for a part of one."""
        return "PGPU" if function.pf is None else "VGPU"

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The owner, and the product of the card."""
        yield "OWNER_CYBORG"
        yield f"CUSTOM_INTEL_GPU_{functions[function.pf or function.address].device}"

    def attributes(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> Mapping[str, str | int | None]:
        """The memory, which only some releases of the kernel's driver i915 show."""
        if function.pf is not None:
            return {}
        for card in functions.names(function.address, "drm"):
            size = functions.number(function.address, f"drm/{card}/lmem_total_bytes")
            if size is not None and size > 0:
                return {"memory_mib": size >> 20}
        return {}


def _is_in_processor(function: pci.Function) -> bool:
    is_display = function.class_code.startswith("03")
    return is_display and pci.split(function.address)["bus"] == _PROCESSORS_BUS
