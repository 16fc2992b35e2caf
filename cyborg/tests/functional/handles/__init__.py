# SPDX-License-Identifier: Apache-2.0
"""Attach handles: prepared, given, cleaned and given back."""
