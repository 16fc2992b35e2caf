# SPDX-License-Identifier: Apache-2.0
"""Allocations of consumers that Nova knows nothing of."""
