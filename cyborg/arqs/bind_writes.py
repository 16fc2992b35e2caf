# SPDX-License-Identifier: Apache-2.0
"""What a bind writes of its ARQs: where they are bound, and which attach handles they have.

One UPDATE for all of which the same is written, however many they are.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from oslo_db import exception as db_exc
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
        try:
            statement = _update(len(those), begins=begins, takes=takes)
            written = db.matched(session, statement, _values(those))
        except (db_exc.DBDuplicateEntry, db_exc.DBReferenceError) as exc:
            # Another ARQ took a handle, or a report removed it, after we saw it free.
            raise db.RestartTransaction from exc
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


@functools.lru_cache(maxsize=32)
def _update(count: int, *, begins: bool, takes: bool) -> sa.Update:
    """The UPDATE of so many ARQs, made once, since making it takes longer than running it."""

    def each(name: str) -> sa.Case[Any]:
        kind = _ARQ.c[name].type
        values = ((f"id_of_{n}", sa.bindparam(f"{name}_of_{n}", type_=kind)) for n in range(count))
        of_arqs = [(sa.bindparam(arq, type_=sa.Integer()), value) for arq, value in values]
        return sa.case(*of_arqs, value=_ARQ.c.id)

    before = arq_states.predecessors(models.BIND_STARTED) if begins else {models.BIND_STARTED}
    names = (_PLACE if begins else ()) + (_HANDLE if takes else ())
    values = (_BEGINS if begins else {}) | {name: each(name) for name in names}
    these = _ARQ.c.id.in_(sa.bindparam("ids", expanding=True))
    where = (these, _ARQ.c.state.in_(before), _ARQ.c.attach_handle_id.is_(None))
    return sa.update(_ARQ).where(*where).values(**values)


def _values(steps: Sequence[Step]) -> dict[str, Any]:
    given: dict[str, Any] = {"ids": [step.arq.id for step in steps]}
    for number, (arq, begins, taken) in enumerate(steps):
        given[f"id_of_{number}"] = arq.id
        if begins:
            given |= {f"{name}_of_{number}": getattr(arq, name) for name in _PLACE}
        if taken:
            given |= {f"{name}_of_{number}": getattr(taken, name) for name in _HANDLE}
    return given


def _log(step: Step) -> None:
    arq, taken = step.arq, step.taken
    if step.begins:
        LOG.info(
            "ARQ %s is BindStarted: instance %s, host %s, provider %s",
            arq.uuid,
            arq.consumer_uuid,
            arq.hostname,
            arq.device_rp_uuid,
        )
    if taken:
        LOG.info("ARQ %s is %s with attach handle %s", arq.uuid, taken.state, taken.handle_uuid)
