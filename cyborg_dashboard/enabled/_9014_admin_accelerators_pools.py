# SPDX-License-Identifier: Apache-2.0
"""Admin, Accelerators, Function Pools."""

PANEL = "accelerator_pools"
PANEL_GROUP = "accelerators"
PANEL_DASHBOARD = "admin"
ADD_PANEL = "cyborg_dashboard.panels.Pools"
