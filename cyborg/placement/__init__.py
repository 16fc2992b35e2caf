# SPDX-License-Identifier: Apache-2.0
"""Devices as resource providers: keep Placement in line with the database."""
