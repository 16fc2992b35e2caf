# SPDX-License-Identifier: Apache-2.0
"""Admin, Accelerators."""

PANEL_GROUP = "accelerators"
PANEL_GROUP_NAME = "Accelerators"
PANEL_GROUP_DASHBOARD = "admin"
ADD_INSTALLED_APPS = ["cyborg_dashboard"]
