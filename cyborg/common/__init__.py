# SPDX-License-Identifier: Apache-2.0
"""What every room knows: errors, reasons, what is asked for, what must be installed."""
