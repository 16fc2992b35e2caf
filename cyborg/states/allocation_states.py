# SPDX-License-Identifier: Apache-2.0
"""The states of an allocation, changed as :mod:`cyborg.states.arq_states` changes those of ARQs."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.common.allocation_states import (
    ACTIVE,
    ALL,
    BINDING,
    CLAIMING,
    FAILED,
    FAILING,
    HOLDING,
    LIVE,
    RELEASING,
    TRANSITIONS,
)
from cyborg.db import models

#: Of the words above, those that others read here.
__all__ = ["ACTIVE", "ALL", "BINDING", "CLAIMING", "FAILED", "FAILING", "HOLDING", "LIVE"]
__all__ += ["RELEASING", "TRANSITIONS"]

LOG = logging.getLogger(__name__)


def predecessors(state: str) -> frozenset[str]:
    """The states from which ``state`` may be entered."""
    return frozenset(old for old, new in TRANSITIONS.items() if state in new)


def enter(
    session: orm.Session, state: str, uuid: str, *where: sa.ColumnElement[bool], **values: Any
) -> bool:
    """Bring an allocation into ``state`` if the table permits it; return whether it did.

    ``where`` must be true of it too. ``values`` are other columns to set.
    """
    row = models.Allocation
    permitted = row.state.in_(predecessors(state))
    which = (row.uuid == uuid, permitted, *where)
    tell = functools.partial(_tell, uuid)
    entered = db.update(session, row, *which, state=state, **values) > 0
    if entered:
        LOG.info("Allocation %s is %s", uuid, state)
        if state in _BY_CONDUCTORS:
            _conducted.set()
        db.after_commit(session, tell)
    return entered


def activate(session: orm.Session, uuid: str) -> bool:
    """Make an allocation Active if the last of its ARQs is Bound; return whether it was."""
    arq = models.Arq
    bound = sa.select(sa.func.count()).where(arq.allocation_uuid == uuid, arq.state == models.BOUND)
    is_whole = models.Allocation.accelerators == bound.scalar_subquery()
    return enter(session, ACTIVE, uuid, is_whole)


#: States that conductors alone bring an allocation into, if it is had.
_BY_CONDUCTORS = frozenset({BINDING, ACTIVE})
_conducted = threading.Event()
_lock = threading.Lock()
#: Those who wait in this process, by the uuid of the allocation.
_waiting: dict[str, set[threading.Event]] = {}


def _tell(uuid: str) -> None:
    with _lock:
        for changed in _waiting.get(uuid, ()):
            changed.set()


def are_changed_here() -> bool:
    """Whether there is a conductor in this process, as far as that is known."""
    return _conducted.is_set()


@contextlib.contextmanager
def watched(uuid: str) -> Iterator[threading.Event]:
    """What is set when this process has changed the state of an allocation.

    Another process may change it too, so whoever waits looks by itself from time to time.
    """
    changed = threading.Event()
    with _lock:
        _waiting.setdefault(uuid, set()).add(changed)
    try:
        yield changed
    finally:
        with _lock:
            _waiting[uuid].discard(changed)
            if not _waiting[uuid]:
                del _waiting[uuid]


def find_locked(session: orm.Session, uuid: str) -> models.Allocation | None:
    """The allocation, locked until the transaction ends."""
    row = models.Allocation
    query = sa.select(row).where(row.uuid == uuid).with_for_update()
    return session.scalar(query.execution_options(populate_existing=True))
