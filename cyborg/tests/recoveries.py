# SPDX-License-Identifier: Apache-2.0
"""What becomes of recoveries."""

from __future__ import annotations

from cyborg.peers import glance
from cyborg.programming import operations


def find_none(*args: object, **what: object) -> None:
    """Glance has no such image."""
    raise glance.NoImage("There is none")


def recoveries() -> list[tuple[str, str | None]]:
    """What has become of each, and the last error."""
    found = operations.list_operations()
    return [(each.state, each.error) for each in found if each.asked_by == operations.RECOVERY]
