# SPDX-License-Identifier: Apache-2.0
"""The plugin as an application of Django."""

from __future__ import annotations

import pathlib

from django import apps
from django.conf import settings

_RULES = pathlib.Path(__file__).with_name("default_policies.yaml")


class CyborgDashboard(apps.AppConfig):
    """Tells Horizon the policy rules of Cyborg, where the settings name no files of them."""

    name = "cyborg_dashboard"

    def ready(self) -> None:
        """Name the rules that Cyborg has by default; without a policy file there are no others."""
        settings.DEFAULT_POLICY_FILES.setdefault("accelerator", str(_RULES))
        settings.POLICY_FILES.setdefault("accelerator", "cyborg_policy.yaml")
