# SPDX-License-Identifier: Apache-2.0
"""Devices of hosts: reported, cared for by administrators, and removed."""
