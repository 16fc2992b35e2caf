# SPDX-License-Identifier: Apache-2.0
"""The states of an allocation, changed as :mod:`cyborg.arq_states` changes those of ARQs."""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db import models

LOG = logging.getLogger(__name__)

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
#: States that a conductor ends.
UNFINISHED = frozenset({CLAIMING, BINDING, FAILING, RELEASING})


def predecessors(state: str) -> frozenset[str]:
    """The states from which ``state`` may be entered."""
    return frozenset(old for old, new in TRANSITIONS.items() if state in new)


def enter(session: orm.Session, state: str, uuid: str, **values: Any) -> bool:
    """Bring an allocation into ``state`` if the table permits it; return whether it did.

    ``values`` are other columns to set.
    """
    row = models.Allocation
    permitted = row.state.in_(predecessors(state))
    entered = db.update(session, row, row.uuid == uuid, permitted, state=state, **values) > 0
    if entered:
        LOG.info("Allocation %s is %s", uuid, state)
    return entered


def find_locked(session: orm.Session, uuid: str) -> models.Allocation | None:
    """The allocation, locked until the transaction ends."""
    row = models.Allocation
    query = sa.select(row).where(row.uuid == uuid).with_for_update()
    return session.scalar(query.execution_options(populate_existing=True))
