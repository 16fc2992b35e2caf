# SPDX-License-Identifier: Apache-2.0
"""The panels below Accelerators of Admin and Project; a module of each has its pages."""

from __future__ import annotations

from typing import Any

import horizon


def _panel(name: str, slug: str, urls: str, rule: str) -> type[horizon.Panel]:
    """A panel for whom the policy rule is made, where the cloud has the service."""
    permissions, rules = ("openstack.services.accelerator",), (("accelerator", rule),)
    options: dict[str, Any] = {"name": name, "slug": slug, "urls": urls, "permissions": permissions}
    # Horizon looks for the module of the pages beside this one.
    options |= {"policy_rules": rules, "__module__": __name__}
    return type(slug, (horizon.Panel,), options)


Overview = _panel("Overview", "accelerators", "admin.overview", "cyborg:summary:get_all")
Devices = _panel("Devices", "accelerator_devices", "admin.devices", "cyborg:device:get_all")
Profiles = _panel(
    "Device Profiles", "accelerator_profiles", "admin.profiles", "cyborg:device_profile:create"
)
Pools = _panel("Function Pools", "accelerator_pools", "admin.pools", "cyborg:function_pool:get_all")
OwnAccelerators = _panel(
    "Own Accelerators", "accelerators", "project.accelerators", "cyborg:arq:get_all"
)
OfferedProfiles = _panel(
    "Device Profiles", "accelerator_profiles", "project.profiles", "cyborg:device_profile:get_all"
)
