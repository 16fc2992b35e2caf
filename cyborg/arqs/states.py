# SPDX-License-Identifier: Apache-2.0
"""The states of an accelerator request and the one table of permitted transitions.

Every change of state is an UPDATE whose WHERE clause holds :func:`predecessors` of the new state,
and whose row count is checked: of two processes that want the change only one can win.
"""

from __future__ import annotations

from cyborg.db.models import (
    BIND_FAILED,
    BIND_STARTED,
    BOUND,
    DELETING,
    INITIAL,
    UNBOUND,
)

__all__ = [
    "ALL",
    "BIND_FAILED",
    "BIND_STARTED",
    "BOUND",
    "DELETING",
    "INITIAL",
    "RESOLVED",
    "TRANSITIONS",
    "UNBOUND",
    "predecessors",
]

ALL = frozenset({INITIAL, BIND_STARTED, BOUND, BIND_FAILED, UNBOUND, DELETING})

#: State to the states that may follow it.
TRANSITIONS: dict[str, frozenset[str]] = {
    INITIAL: frozenset({BIND_STARTED, UNBOUND, DELETING}),
    BIND_STARTED: frozenset({BOUND, BIND_FAILED, UNBOUND, DELETING}),
    BOUND: frozenset({UNBOUND, DELETING}),
    BIND_FAILED: frozenset({UNBOUND, DELETING}),
    UNBOUND: frozenset({BIND_STARTED, UNBOUND, DELETING}),
    DELETING: frozenset({DELETING}),
}

#: What Nova takes as decided; a Deleting ARQ counts as failed there.
RESOLVED = frozenset({BOUND, BIND_FAILED, DELETING})

def predecessors(state: str) -> frozenset[str]:
    """The states from which ``state`` may be entered."""
    return frozenset(old for old, new in TRANSITIONS.items() if state in new)
