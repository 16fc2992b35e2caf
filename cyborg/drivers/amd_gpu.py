# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs: whole cards, and virtual functions of divided cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cyborg.drivers import pci


class AmdGpuDriver(pci.PciDriver):
    """Reports each GPU, or its virtual functions as virtual GPUs if it has any."""

    match = (
        pci.Match(vendor="1002", class_code="03*"),
        pci.Match(vendor="1002", class_code="1200*"),  # Instinct without a display
    )
    type = "GPU"
    resource_class = "PGPU"
    expose = "vfs"
    group = "amd_gpu_driver"

    def resource(self, function: pci.Function) -> str:
        """PGPU for a whole card, VGPU for a part of one."""
        return "PGPU" if function.pf is None else "VGPU"

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The owner, and the product of the card."""
        yield "OWNER_CYBORG"
        yield f"CUSTOM_AMD_{functions[function.pf or function.address].device}"

    def attributes(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> Mapping[str, str | int | None]:
        """Facts that the host's driver shows of the card. It does not show a part's memory."""
        card = function.pf or function.address
        memory = functions.number(card, "mem_info_vram_total")
        return {
            "product": functions.text(card, "product_name"),
            "firmware": functions.text(card, "vbios_version"),
            "serial": functions.text(card, "unique_id"),
            "memory_mib": memory >> 20 if memory and function.pf is None else None,
            "compute_partition": functions.text(card, "current_compute_partition"),
            "memory_partition": functions.text(card, "current_memory_partition"),
        }
