# SPDX-License-Identifier: Apache-2.0
"""The newest microversion of the API, at which Cyborg's own clients ask."""

from __future__ import annotations

NEWEST = "2.4"
