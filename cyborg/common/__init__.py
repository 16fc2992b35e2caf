# SPDX-License-Identifier: Apache-2.0
"""Words that every room knows: errors, reasons, states, and what must be installed."""
