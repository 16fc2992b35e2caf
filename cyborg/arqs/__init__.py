# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests: states, creation, binding, and what Nova is told."""
