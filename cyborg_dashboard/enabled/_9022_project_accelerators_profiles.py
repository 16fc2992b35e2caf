# SPDX-License-Identifier: Apache-2.0
"""Project, Accelerators, Device Profiles."""

PANEL = "accelerator_profiles"
PANEL_GROUP = "accelerators"
PANEL_DASHBOARD = "project"
ADD_PANEL = "cyborg_dashboard.panels.OfferedProfiles"
