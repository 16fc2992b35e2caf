# SPDX-License-Identifier: Apache-2.0
"""The states of ARQs, attach handles and allocations, and what is available."""
