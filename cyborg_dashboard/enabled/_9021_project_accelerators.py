# SPDX-License-Identifier: Apache-2.0
"""Project, Accelerators, Own Accelerators."""

PANEL = "accelerators"
PANEL_GROUP = "accelerators"
PANEL_DASHBOARD = "project"
ADD_PANEL = "cyborg_dashboard.panels.OwnAccelerators"
