# SPDX-License-Identifier: Apache-2.0
"""Intel GPUs on cards, such as Data Center GPU Flex and Max and Arc Pro."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cyborg.drivers import base, pci

#: The bus of functions in the processor's package: its own graphics.
_PROCESSORS_BUS = "00"
_TILE = re.compile(r"tile\d")


class IntelGpuDriver(pci.PciDriver):
    """Reports each GPU whole, or its virtual functions as virtual GPUs if it has any."""

    match = (pci.Match(vendor="8086", class_code="03*"),)
    type = "GPU"
    resource_class = "PGPU"
    part_class = "VGPU"
    expose = "vfs"
    group = "intel_gpu_driver"
    own_traits = ("OWNER_CYBORG", "CUSTOM_INTEL_GPU_{card.device}")

    def _fits(self, function: pci.Function, functions: pci.Snapshot) -> bool:
        return not _is_in_processor(function) or self._is_meant(function, functions)

    def _is_meant(self, function: pci.Function, functions: pci.Snapshot) -> bool:
        """True if the operator lists graphics of the processor's bus: in a guest, cards have it."""
        spec = self.spec(function, functions)
        return spec is not None and not spec.exclude and spec.is_exact

    def why_not_offered(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> base.Refusal | None:
        """As any driver does, and the graphics of a processor."""
        is_own = function.vendor == "8086" and _is_in_processor(function)
        if is_own and not self._is_meant(function, functions):
            remedy = f"{self.option} with its product_id or address"
            return base.Refusal(reason="it is the processor's own graphics", remedy=remedy)
        return super().why_not_offered(function, functions)

    def attributes(self, function: pci.Function, functions: pci.Snapshot) -> pci.Facts:
        """The memory, which only some releases of the kernel's drivers i915 and xe show."""
        card = functions.get(function.pf or function.address, function)
        for paths in _memory(function, card, functions):
            size = sum(max(0, functions.number(card.address, path) or 0) for path in paths)
            if size:
                return {"memory_mib": size >> 20}
        return {}


def _memory(
    function: pci.Function, card: pci.Function, functions: pci.Snapshot
) -> Iterator[Sequence[str]]:
    """The files of the card with a function's memory, of one way to show it after another."""
    shown = [f"drm/{name}/" for name in functions.names(card.address, "drm")]
    if function.pf is None:
        yield from ([f"{each}lmem_total_bytes"] for each in ("", *shown))
        tiles = [each for each in functions.names(card.address, "") if _TILE.fullmatch(each)]
        for folder in ("", "memory/"):
            yield [f"{each}/{folder}physical_vram_size_bytes" for each in tiles]
    elif function.address in card.vfs:
        part = f"vf{card.vfs.index(function.address) + 1}"
        for each in shown:
            for folder in (f"{each}iov/{part}/", f"{each}prelim_iov/{part}/"):
                yield [f"{folder}gt/lmem_quota"]
                yield [f"{folder}gt{number}/lmem_quota" for number in (0, 1)]
        yield [f"sriov_admin/{part}/profile/vram_quota"]
        folder = f"/sys/kernel/debug/dri/{card.address}"
        yield [f"{folder}/sriov/{part}/tile0/vram_quota"]
        yield [f"{folder}/gt0/{part}/lmem_quota"]


def _is_in_processor(function: pci.Function) -> bool:
    is_display = function.class_code.startswith("03")
    return is_display and pci.split(function.address)["bus"] == _PROCESSORS_BUS
