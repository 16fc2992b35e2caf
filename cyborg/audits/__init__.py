# SPDX-License-Identifier: Apache-2.0
"""Audits look at what must be true of ARQs, allocations and their history, and put it right."""
