# SPDX-License-Identifier: Apache-2.0
"""Hosts and devices as administrators handle them: drained, tainted, removed."""
