# SPDX-License-Identifier: Apache-2.0
"""Composition roots of the command-line programs."""
