# SPDX-License-Identifier: Apache-2.0
"""Tests of the dashboard: Horizon's own code in front of the real API."""
