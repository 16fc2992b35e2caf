# SPDX-License-Identifier: Apache-2.0
"""Pools of functions, and misses."""
