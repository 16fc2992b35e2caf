# SPDX-License-Identifier: Apache-2.0
"""Programming deployables: what is wanted, what forbids it, and the steps of one operation."""
