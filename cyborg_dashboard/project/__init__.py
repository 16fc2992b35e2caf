# SPDX-License-Identifier: Apache-2.0
"""Panels for the members of a project."""
