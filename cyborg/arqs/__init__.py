# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests: creation, binding, release, and events for Nova."""
