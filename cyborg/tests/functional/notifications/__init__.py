# SPDX-License-Identifier: Apache-2.0
"""Notifications and audit events, as listeners hear them."""
