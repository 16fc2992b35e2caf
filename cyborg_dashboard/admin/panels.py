# SPDX-License-Identifier: Apache-2.0
"""The panels below Admin, Accelerators; the module of each has its pages."""

from __future__ import annotations

import horizon

_SERVICES = ("openstack.services.accelerator",)


class Overview(horizon.Panel):
    """Hosts and resource classes in numbers."""

    name = "Overview"
    slug = "accelerators"
    urls = "overview"
    permissions = _SERVICES
    policy_rules = (("accelerator", "cyborg:summary:get_all"),)


class Devices(horizon.Panel):
    """Devices, and what they run."""

    name = "Devices"
    slug = "accelerator_devices"
    urls = "devices"
    permissions = _SERVICES
    policy_rules = (("accelerator", "cyborg:device:get_all"),)
