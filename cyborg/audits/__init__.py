# SPDX-License-Identifier: Apache-2.0
"""What must be true of ARQs, allocations and their history is looked at, and put right."""
