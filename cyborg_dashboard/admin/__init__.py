# SPDX-License-Identifier: Apache-2.0
"""Panels for administrators of the cloud."""
