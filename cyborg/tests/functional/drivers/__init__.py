# SPDX-License-Identifier: Apache-2.0
"""Drivers, on simulated hosts."""
