# SPDX-License-Identifier: Apache-2.0
"""Admin, Accelerators, Overview."""

PANEL = "accelerators"
PANEL_GROUP = "accelerators"
PANEL_DASHBOARD = "admin"
ADD_PANEL = "cyborg_dashboard.panels.Overview"
