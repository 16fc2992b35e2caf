# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests: bound, waited for and brought to an end."""
