# SPDX-License-Identifier: Apache-2.0
"""What the last user of an attach handle has left in it: the one table of what may follow what.

An ARQ that has a handle says so itself, by :attr:`.models.Arq.attach_handle_id`: a state of the
handle for that would add two UPDATEs to the 22 statements of a boot. An ARQ that is unbound, failed
or deleted has none: what it has left is written in the handle's own row, with a snapshot of who it
was. So a handle that is not clean is given to nobody, whatever becomes of the ARQ.

Everything that happens to it is an :class:`Event`. Only this module sets the state, and names it in
SQL; others ask :attr:`.models.AttachHandle.is_left`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db import models
from cyborg.db.models import CLEAN, TO_CLEAN, TO_OVERWRITE

#: What each state means.
STATES: Mapping[str, str] = {
    CLEAN: "Nobody has left anything in it. An ARQ has it, or anybody may.",
    TO_OVERWRITE: "The deployable is to be overwritten first: its guest may have left something.",
    TO_CLEAN: "Its host is to clean it, and may still be asked to prepare it.",
}


class Event(enum.Enum):
    """What happens to the handle."""

    LEFT = "Its user has left it, and the host has something to do."
    LEFT_WRITTEN = "A guest has left it, and may have written to the whole deployable."
    OVERWRITTEN = "The deployable has been written anew."
    FAILED = "It could not be cleaned; the reason is kept."
    CLEANED = "Its host has cleaned it, or nothing is to be cleaned any more."
    GIVEN_UP = "An administrator gives it out without that."


_E = Event

#: What follows a state after an event. What is not here cannot happen.
TABLE: Mapping[tuple[str, Event], str] = {
    (CLEAN, _E.LEFT): TO_CLEAN,
    (CLEAN, _E.LEFT_WRITTEN): TO_OVERWRITE,
    (TO_OVERWRITE, _E.OVERWRITTEN): TO_CLEAN,
    (TO_OVERWRITE, _E.FAILED): TO_OVERWRITE,
    # Its driver has no blank image any more.
    (TO_OVERWRITE, _E.CLEANED): CLEAN,
    (TO_OVERWRITE, _E.GIVEN_UP): CLEAN,
    (TO_CLEAN, _E.FAILED): TO_CLEAN,
    (TO_CLEAN, _E.CLEANED): CLEAN,
    (TO_CLEAN, _E.GIVEN_UP): CLEAN,
}

_HANDLE = models.AttachHandle
#: What is known of a handle that was left; null of a clean one.
_LEFT = (
    "left_ms",
    "left_reason",
    "left_arq",
    "left_project",
    "left_profile",
    "left_host",
    "left_consumer",
    "left_created_at",
    "left_by",
)


def next_state(state: str, event: Event) -> str:
    """What follows ``state`` after ``event``.

    :raises AssertionError: that cannot happen
    """
    if (state, event) not in TABLE:
        raise AssertionError(f"{event.name} cannot happen to a handle that is {state}.")
    return TABLE[state, event]


def change(
    session: orm.Session, event: Event, *where: sa.ColumnElement[bool], **values: Any
) -> int:
    """Bring the handles that meet ``where`` to their next state, if the table permits it.

    Returns how many. ``values`` are other columns to set; a clean handle keeps none of what was
    left.
    """
    follows = {old: next_state(old, event) for old, happens in TABLE if happens is event}
    if CLEAN in follows.values():
        values |= dict.fromkeys(_LEFT) | {"needs_write": False}
    new = sa.case(follows, value=_HANDLE.state)
    return db.update(session, _HANDLE, _HANDLE.state.in_(follows), *where, state=new, **values)


class Leaving(NamedTuple):
    """A locked handle that its ARQ leaves, which is as it was before that."""

    handle_id: int
    arq: models.Arq
    event: Event


def leave(session: orm.Session, leaving: Sequence[Leaving]) -> None:
    """Note that handles were left, and by whom. One UPDATE an event.

    :raises RestartTransaction: one of them has changed since it was read
    """
    for event in {each.event for each in leaving}:
        those = {each.handle_id: each.arq for each in leaving if each.event is event}
        values = {
            "needs_write": lambda arq: arq.needs_write,
            "left_arq": lambda arq: arq.uuid,
            "left_project": lambda arq: arq.project_id,
            "left_profile": lambda arq: arq.device_profile_name,
            "left_host": lambda arq: arq.hostname,
            "left_consumer": lambda arq: arq.consumer_uuid,
            "left_created_at": lambda arq: arq.created_at,
            "left_by": _snapshot,
        }
        written = {
            name: _of_each(name, {id_: value(arq) for id_, arq in those.items()})
            for name, value in values.items()
        }
        ours = _HANDLE.id.in_(those)
        if change(session, event, ours, left_ms=db.now_ms(), **written) < len(those):
            raise db.RestartTransaction


def _of_each(name: str, values: Mapping[int, Any]) -> sa.Case[Any]:
    kind = models.AttachHandle.__table__.c[name].type
    known = {id_: sa.literal(value, kind) for id_, value in values.items()}
    return sa.case(known, value=_HANDLE.id)


def _snapshot(arq: models.Arq) -> dict[str, Any]:
    return {
        "group_id": arq.device_profile_group_id,
        "group": arq.group,
        "device_rp_uuid": arq.device_rp_uuid,
        "consumer_nqn": arq.consumer_nqn,
    }


def leavers(
    session: orm.Session, handles: Sequence[models.AttachHandle]
) -> dict[int, models.Arq]:
    """Who has left handles, by the ids of these; each is in the state that it is in now."""
    arq = models.Arq
    alive = sa.select(arq.uuid, arq.state).where(arq.uuid.in_([each.left_arq for each in handles]))
    states: dict[str, str] = dict(list(session.execute(alive))) if handles else {}
    return {
        handle.id: who_left(handle, states.get(handle.left_arq or "", models.DELETING))
        for handle in handles
    }


def who_left(handle: models.AttachHandle, state: str = models.DELETING) -> models.Arq:
    """The ARQ that has left a handle, as it was but for its state; an object without a row."""
    by = handle.left_by or {}
    return models.Arq(
        uuid=handle.left_arq,
        state=state,
        project_id=handle.left_project,
        device_profile_name=handle.left_profile,
        hostname=handle.left_host,
        consumer_uuid=handle.left_consumer,
        created_at=handle.left_created_at,
        device_profile_group_id=by["group_id"],
        group=by["group"],
        device_rp_uuid=by["device_rp_uuid"],
        consumer_nqn=by["consumer_nqn"],
    )


def lock_left(session: orm.Session, *where: sa.ColumnElement[bool]) -> list[models.AttachHandle]:
    """The handles that meet ``where`` and are not clean, locked."""
    query = sa.select(_HANDLE).where(_HANDLE.is_left, *where).order_by(_HANDLE.id)
    query = query.execution_options(populate_existing=True)
    return list(session.scalars(query.with_for_update()))


def is_shown(handle: Any = _HANDLE) -> sa.ColumnElement[bool]:
    """The handle stands for a deleted ARQ: it was left by one, and the last of those it left."""
    later = orm.aliased(_HANDLE)
    return sa.and_(
        handle.is_left,
        ~sa.exists().where(models.Arq.uuid == handle.left_arq),
        ~sa.exists().where(later.left_arq == handle.left_arq, later.id > handle.id),
    )


def note_overwritten(session: orm.Session, deployable_id: int) -> list[str]:
    """The deployable was written anew; returns the uuids of its handles that can be cleaned now."""
    of_it = (_HANDLE.deployable_id == deployable_id, _HANDLE.is_to_overwrite)
    uuids = list(session.scalars(sa.select(_HANDLE.uuid).where(*of_it)))
    if uuids:
        change(session, Event.OVERWRITTEN, _HANDLE.uuid.in_(uuids))
    return uuids
