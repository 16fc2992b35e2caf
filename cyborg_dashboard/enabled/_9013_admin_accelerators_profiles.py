# SPDX-License-Identifier: Apache-2.0
"""Admin, Accelerators, Device Profiles."""

PANEL = "accelerator_profiles"
PANEL_GROUP = "accelerators"
PANEL_DASHBOARD = "admin"
ADD_PANEL = "cyborg_dashboard.panels.Profiles"
