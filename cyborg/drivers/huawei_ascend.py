# SPDX-License-Identifier: Apache-2.0
"""Huawei Ascend processors for artificial intelligence."""

from __future__ import annotations

from cyborg.drivers import pci


class HuaweiAscendDriver(pci.PciDriver):
    """Reports each processor, or its virtual functions if it has any."""

    match = (pci.Match(vendor="19e5", class_code="1200*"),)
    type = "AICHIP"
    resource_class = "CUSTOM_AICHIP"
    expose = "vfs"
    group = "huawei_ascend_driver"
    own_traits = ("CUSTOM_AICHIP_HUAWEI", "CUSTOM_AICHIP_PRODUCT_ID_{function.device}")
