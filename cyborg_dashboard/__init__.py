# SPDX-License-Identifier: Apache-2.0
"""Panels of Horizon for accelerators: those of the cloud, and those of a project."""
