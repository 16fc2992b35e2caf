# SPDX-License-Identifier: Apache-2.0
"""Xilinx FPGA cards: a function that manages the card and one for its user, given together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cyborg.drivers import declarative, pci


class XilinxFpgaDriver(declarative.PciDriver):
    """Reports each card as one accelerator with a handle for each of its functions."""

    match = (declarative.Match(vendor="10ee", class_code="1200*"),)
    type = "FPGA"
    resource_class = "FPGA"
    expose = "slot"
    group = "xilinx_fpga_driver"

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """Vendor and product; the product is that of the managing function."""
        del functions
        yield "CUSTOM_FPGA_XILINX"
        yield f"CUSTOM_FPGA_PRODUCT_ID_{function.device}"

    def attributes(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> Mapping[str, str | int | None]:
        """What the managing driver tells; the shell is the card's firmware."""
        shells = [
            functions.text(function.address, f"{name}/VBNV")
            for name in functions.names(function.address, "")
            if name.startswith("rom.")
        ]
        return {
            "product": functions.text(function.address, "board_name"),
            "firmware": next((shell for shell in shells if shell), None),
        }
