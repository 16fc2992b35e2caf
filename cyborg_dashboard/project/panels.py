# SPDX-License-Identifier: Apache-2.0
"""The panels below Project, Accelerators; the module of each has its pages."""

from __future__ import annotations

import horizon

_SERVICES = ("openstack.services.accelerator",)


class OwnAccelerators(horizon.Panel):
    """What the project has, and may have."""

    name = "Own Accelerators"
    slug = "accelerators"
    urls = "accelerators"
    permissions = _SERVICES
    policy_rules = (("accelerator", "cyborg:arq:get_all"),)


class OfferedProfiles(horizon.Panel):
    """What the project may ask for."""

    name = "Device Profiles"
    slug = "accelerator_profiles"
    urls = "profiles"
    permissions = _SERVICES
    policy_rules = (("accelerator", "cyborg:device_profile:get_all"),)
