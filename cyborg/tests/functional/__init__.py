# SPDX-License-Identifier: Apache-2.0
"""Tests through the front door on real parts."""
