# SPDX-License-Identifier: Apache-2.0
"""Callers: what each may ask for, and how it is known who asks."""
