# SPDX-License-Identifier: Apache-2.0
"""Suites that every implementation of a contract subclasses."""
