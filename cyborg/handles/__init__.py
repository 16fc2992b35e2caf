# SPDX-License-Identifier: Apache-2.0
"""Attach handles: given out, made ready and cleaned on their host, released."""
