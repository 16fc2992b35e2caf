# SPDX-License-Identifier: Apache-2.0
"""Project, Accelerators."""

PANEL_GROUP = "accelerators"
PANEL_GROUP_NAME = "Accelerators"
PANEL_GROUP_DASHBOARD = "project"
