# SPDX-License-Identifier: Apache-2.0
"""Processes: their start, signals, loops, logs and metrics."""
