# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs: whole cards, and the virtual functions of cards that were divided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cyborg.drivers import declarative, pci


class AmdGpuDriver(declarative.PciDriver):
    """Reports each GPU, or its virtual functions as virtual GPUs while it has any."""

    match = (
        declarative.Match(vendor="1002", class_code="03*"),
        declarative.Match(vendor="1002", class_code="1200*"),  # Instinct without a display
    )
    type = "GPU"
    resource_class = "PGPU"
    expose = "vfs"
    group = "amd_gpu_driver"

    def resource(self, function: pci.Function) -> str:
        """A part of a card is no physical GPU."""
        return "PGPU" if function.pf is None else "VGPU"

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The owner and the product, which for a part is the card's."""
        yield "OWNER_CYBORG"
        yield f"CUSTOM_AMD_{functions[function.pf or function.address].device}"

    def attributes(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> Mapping[str, str | int | None]:
        """What the host's driver tells of the card. A part's memory it does not tell."""
        card = function.pf or function.address
        memory = functions.number(card, "mem_info_vram_total")
        return {
            "product": functions.text(card, "product_name"),
            "firmware": functions.text(card, "vbios_version"),
            "serial": functions.text(card, "unique_id"),
            "memory_mib": memory >> 20 if memory and function.pf is None else None,
        }
