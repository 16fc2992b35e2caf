# SPDX-License-Identifier: Apache-2.0
"""Disks: NVMe controllers, and subsystems over a network."""
