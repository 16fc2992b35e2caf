# SPDX-License-Identifier: Apache-2.0
"""Devices as the hosts report them: queries, reports, administration."""
