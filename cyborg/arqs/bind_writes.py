# SPDX-License-Identifier: Apache-2.0
"""The writes of a bind: the place of each ARQ, and its attach handle."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db import models
from cyborg.states import arq_states

LOG = logging.getLogger(__name__)


class Taken(NamedTuple):
    """A free attach handle that an ARQ gets, and the state in which it has that."""

    attach_handle_id: int
    handle_uuid: str
    state: str
    needs_write: bool


class Step(NamedTuple):
    """What is written of a locked ARQ, which has the values that are written.

    ``begins``: it becomes BindStarted now, and is not so already. With a handle at once, it goes
    through that state on its way to the one of the handle.
    """

    arq: models.Arq
    begins: bool
    taken: Taken | None = None


def write(session: orm.Session, steps: Sequence[Step]) -> None:
    """Write all steps.

    :raises RestartTransaction: an ARQ or a handle has changed since it was read
    """
    alike: dict[tuple[bool, bool], list[Step]] = {}
    for step in steps:
        alike.setdefault((step.begins, step.taken is not None), []).append(step)
    for (begins, takes), those in alike.items():
        given = [_values(step) for step in those]
        # Another ARQ may take a handle, or a report remove it, after we saw it free.
        with db.restarting():
            written = db.matched(session, _UPDATES[begins, takes], given)
        if written != len(those):
            raise db.RestartTransaction
    for step in steps:
        _log(step)


#: What is written of an ARQ whose bind begins, and of one that takes a handle.
_PLACE = ("hostname", "device_rp_uuid", "consumer_uuid", "project_id")
_HANDLE = ("attach_handle_id", "state", "needs_write")
_ARQ: Any = models.Arq.__table__
_BEGINS: dict[str, Any] = {
    "state": models.BIND_STARTED,
    "state_reason": None,
    "private_reason": None,
    "bind_started_ms": db.now_ms(),
    # Nova has the instance for which it binds, and is never asked for another consumer.
    "instance_asked_ms": sa.case((_ARQ.c.allocation_uuid.is_(None), db.now_ms())),
    "instance_missed_ms": None,
    "allocation_missed_ms": None,
}


def _update(*, begins: bool, takes: bool) -> sa.Update:
    """The UPDATE of one ARQ, whose values are named like their columns."""
    before = arq_states.predecessors(models.BIND_STARTED) if begins else {models.BIND_STARTED}
    names = (_PLACE if begins else ()) + (_HANDLE if takes else ())
    values = (_BEGINS if begins else {}) | {name: sa.bindparam(f"its_{name}") for name in names}
    # With IN it could be run for one set of values only.
    as_before = sa.or_(*(_ARQ.c.state == state for state in sorted(before)))
    where = (_ARQ.c.id == sa.bindparam("its_id"), as_before, _ARQ.c.attach_handle_id.is_(None))
    return sa.update(_ARQ).where(*where).values(**values)


#: By whether the bind begins, and whether a handle is taken.
_UPDATES = {
    (begins, takes): _update(begins=begins, takes=takes)
    for begins, takes in ((True, False), (False, True), (True, True))
}


def _values(step: Step) -> dict[str, Any]:
    given = {"its_id": step.arq.id}
    if step.begins:
        given |= {f"its_{name}": getattr(step.arq, name) for name in _PLACE}
    if step.taken:
        given |= {f"its_{name}": getattr(step.taken, name) for name in _HANDLE}
    return given


def _log(step: Step) -> None:
    arq, taken = step.arq, step.taken
    if step.begins:
        place = (arq.consumer_uuid, arq.hostname, arq.device_rp_uuid)
        LOG.info("ARQ %s is BindStarted: instance %s, host %s, provider %s", arq.uuid, *place)
    if taken:
        LOG.info("ARQ %s is %s with attach handle %s", arq.uuid, taken.state, taken.handle_uuid)
