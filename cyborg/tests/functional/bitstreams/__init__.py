# SPDX-License-Identifier: Apache-2.0
"""Bitstreams: fetched from Glance, verified, and written by the vendors' tools."""
