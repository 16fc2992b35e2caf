# SPDX-License-Identifier: Apache-2.0
"""Microversions of the API at which Cyborg's own clients ask."""

from __future__ import annotations

#: The first one above those of other implementations, and the newest.
FIRST = NEWEST = "2.4"
