# SPDX-License-Identifier: Apache-2.0
"""Inspur solid-state disks, given out whole."""

from __future__ import annotations

from cyborg.drivers import pci
from cyborg.drivers.nvme import controllers


class InspurNvmeSsdDriver(controllers.NvmeController):
    """Reports each of the vendor's NVMe controllers."""

    match = (pci.Match(vendor="1bd4", class_code=controllers.CLASS),)
    type = "SSD"
    resource_class = "CUSTOM_SSD"
    group = "inspur_nvme_ssd_driver"
    own_traits = ("CUSTOM_SSD_INSPUR", "CUSTOM_SSD_PRODUCT_ID_{function.device}")
