# SPDX-License-Identifier: Apache-2.0
"""Inspur FPGA cards, given out whole."""

from __future__ import annotations

from cyborg.drivers import pci


class InspurFpgaDriver(pci.PciDriver):
    """Reports each FPGA card. Other products of the vendor have other classes."""

    match = (pci.Match(vendor="1bd4", class_code="1200*"),)
    type = "FPGA"
    resource_class = "FPGA"
    group = "inspur_fpga_driver"
    own_traits = ("CUSTOM_FPGA_INSPUR", "CUSTOM_FPGA_PRODUCT_ID_{function.device}")
