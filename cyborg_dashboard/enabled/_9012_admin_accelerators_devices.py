# SPDX-License-Identifier: Apache-2.0
"""Admin, Accelerators, Devices."""

PANEL = "accelerator_devices"
PANEL_GROUP = "accelerators"
PANEL_DASHBOARD = "admin"
ADD_PANEL = "cyborg_dashboard.panels.Devices"
