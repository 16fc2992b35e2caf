# SPDX-License-Identifier: Apache-2.0
"""Inspur solid-state disks, given out whole."""

from __future__ import annotations

from collections.abc import Iterator

from cyborg.drivers import pci
from cyborg.drivers.nvme import controllers


class InspurNvmeSsdDriver(controllers.NvmeController):
    """Reports each of the vendor's NVMe controllers."""

    match = (pci.Match(vendor="1bd4", class_code=controllers.CLASS),)
    type = "SSD"
    resource_class = "CUSTOM_SSD"
    group = "inspur_nvme_ssd_driver"

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """Vendor and product."""
        del functions
        yield "CUSTOM_SSD_INSPUR"
        yield f"CUSTOM_SSD_PRODUCT_ID_{function.device}"
