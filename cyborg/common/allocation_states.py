# SPDX-License-Identifier: Apache-2.0
"""The words for the states of an allocation: those of the database, the API and its clients."""

from __future__ import annotations

#: Its place is chosen, and is to be claimed in Placement.
CLAIMING = "Claiming"
#: It is claimed, and its ARQs are being bound.
BINDING = "Binding"
#: All of it can be used.
ACTIVE = "Active"
#: Some of it could not be had, so all of it is being given back.
FAILING = "Failing"
#: Nothing is held for it.
FAILED = "Failed"
#: It is being given back, and deleted then.
RELEASING = "Releasing"

#: State to the states that may follow it.
TRANSITIONS: dict[str, frozenset[str]] = {
    CLAIMING: frozenset({BINDING, FAILING, RELEASING}),
    BINDING: frozenset({ACTIVE, FAILING, RELEASING}),
    ACTIVE: frozenset({FAILING, RELEASING}),
    FAILING: frozenset({FAILED, RELEASING}),
    FAILED: frozenset({CLAIMING, RELEASING}),
    RELEASING: frozenset(),
}

ALL = frozenset(TRANSITIONS)
#: States in which a consumer has it, or is about to.
LIVE = frozenset({CLAIMING, BINDING, ACTIVE})
#: States in which it is claimed.
HOLDING = frozenset({BINDING, ACTIVE})
