# SPDX-License-Identifier: Apache-2.0
"""Placement: kept as the database wants it, whoever changes it."""
