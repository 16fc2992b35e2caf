# SPDX-License-Identifier: Apache-2.0
"""The ARQs that use a deployable: no program is written under them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db import models
from cyborg.peers import glance
from cyborg.programming import program
from cyborg.states import arq_states, availability

_DEPLOYABLE = models.Deployable
#: To make a statement takes longer than to run it: those for one deployable are made once.
_ONE: sa.BindParameter[Any] = sa.bindparam("deployable_ids", expanding=True)
_Ids = Collection[int] | sa.BindParameter[Any]


def in_use() -> sa.ColumnElement[bool]:
    """An ARQ uses the deployable, see :func:`users`, or has left a handle that is not clean yet."""
    uses = (*_uses(_DEPLOYABLE), _unclean(_DEPLOYABLE))
    return sa.or_(*(each.correlate(_DEPLOYABLE).exists() for each in uses))


def users(deployable_ids: _Ids) -> sa.Subquery:
    """Which ARQs use which of the deployables: columns ``deployable_id`` and ``arq_id``.

    An ARQ uses a deployable if it holds one of its handles, or is being bound to its provider. A
    missing deployable of the same device counts as well: it may be the same part of the device
    under its former name. So do those below it, which are parts of its layout.
    """
    # An OR in place of the UNION would read all ARQs.
    return sa.union(*_of_these(deployable_ids, _uses)).subquery()


def unclean(deployable_ids: _Ids) -> sa.Subquery:
    """Which handles of them are not clean, likewise: ``deployable_id`` and ``handle_id``."""
    return sa.union(*_of_these(deployable_ids, lambda row: (_unclean(row),))).subquery()


def _of_these(
    deployable_ids: _Ids, what: Callable[[Any], Sequence[sa.Select[Any]]]
) -> list[sa.Select[Any]]:
    row = orm.aliased(_DEPLOYABLE)
    return [
        each.add_columns(row.id.label("deployable_id")).where(row.id.in_(deployable_ids))
        for each in what(row)
    ]


def _same(part: Any, row: Any) -> sa.ColumnElement[bool]:
    """``part`` is the deployable ``row``, or a part of it, or may be that under a former name."""
    same = sa.or_(part.id == row.id, part.parent_id == row.id, part.missing.is_(True))
    return sa.and_(part.device_id == row.device_id, same)


def _uses(row: Any) -> tuple[sa.Select[Any], ...]:
    part, arq = orm.aliased(_DEPLOYABLE), orm.aliased(models.Arq)
    return tuple(each.where(_same(part, row)) for each in availability.uses_of(part, arq))


def _unclean(row: Any) -> sa.Select[Any]:
    part = orm.aliased(_DEPLOYABLE)
    return availability.left_in(part, orm.aliased(models.AttachHandle)).where(_same(part, row))


def why_not(
    session: orm.Session, deployable: models.Deployable, what: program.Program
) -> str | None:
    """The reason why a locked deployable may not be programmed, or None if it may.

    ARQs that wait for this very program do not count, unless what runs now serves them: those may
    become Bound at any moment. Consumers in Placement that have no ARQ yet are found by
    :mod:`cyborg.programming.withdrawal`.
    """
    for arq in _keeping(session, deployable, what):
        return _sentence(arq, deployable)
    for handle, rp_uuid in _left(session, deployable):
        it = _it(rp_uuid, deployable)
        return f"An attach handle of {it} is being cleaned after use by ARQ {handle.left_arq}."
    return None


def is_being_cleaned(
    session: orm.Session, deployable: models.Deployable, what: program.Program
) -> bool:
    """The handles that :func:`why_not` names are only such that are cleaned without a write."""
    if _keeping(session, deployable, what):
        return False
    return not any(handle.is_to_overwrite for handle, _ in _left(session, deployable))


def _keeping(
    session: orm.Session, deployable: models.Deployable, what: program.Program
) -> list[models.Arq]:
    return [
        arq
        for arq in _users(session, deployable.id)
        if not _waits_for(arq, what) or program.lacking(arq.request, deployable.record) is None
    ]


def why_not_now(
    session: orm.Session, deployable: models.Deployable, what: program.Program
) -> str | None:
    """The reason why what has been withdrawn for a program may not be written any more, or None.

    A handle that was given back meanwhile is cleaned after that.
    """
    for arq in _users(session, deployable.id):
        if not _waits_for(arq, what):
            return _sentence(arq, deployable)
    return None


def waiting(
    session: orm.Session, operation: models.Operation, image: glance.Image | None = None
) -> list[models.Arq]:
    """The ARQs whose binds wait for the program of an operation.

    ``image`` is what was found for it, if that is not recorded yet.
    """
    row = models.Deployable
    found = session.scalar(sa.select(row.id).where(row.uuid == operation.deployable_uuid))
    what = program.of_operation(operation, image)
    users = _users(session, found) if found is not None else []
    return [arq for arq in users if _waits_for(arq, what)]


def instances(session: orm.Session, deployable: models.Deployable) -> set[str]:
    """The instances whose ARQs use a deployable, or are being bound to it."""
    return {arq.consumer_uuid for arq in _users(session, deployable.id) if arq.consumer_uuid}


def is_used(session: orm.Session, deployable: models.Deployable) -> bool:
    """A guest holds a handle of a locked deployable; one that is being prepared counts."""
    users = _users(session, deployable.id)
    return any(arq.attach_handle_id for arq in users)


def former_guests(session: orm.Session, deployable: models.Deployable) -> list[models.Arq]:
    """The ARQs of guests who have a deployable under its former name, or a part of it."""
    return [
        arq
        for arq in _users(session, deployable.id)
        if arq.attach_handle_id and arq.device_rp_uuid != deployable.rp_uuid
    ]


def note_needs(
    session: orm.Session,
    deployable: models.Deployable,
    *,
    needs_write: bool,
    left_too: bool = False,
) -> None:
    """Note of the ARQs with a handle of a locked deployable whether they need what is written now.

    Of one that leaves meanwhile this stays noted, at the handle: what it leaves behind was written
    for it, see :func:`.availability.awaits_cleaning`. ``left_too``: of these as well. Nothing that
    the API shows changes with it.
    """
    arq, handle = models.Arq, models.AttachHandle
    query = sa.select(arq.id).join(handle, handle.id == arq.attach_handle_id)
    held = query.where(handle.deployable_id == deployable.id)
    if ids := list(session.scalars(held.where(arq.needs_write.is_not(needs_write)))):
        still = (arq.id.in_(ids), arq.attach_handle_id.is_not(None))
        if arq_states.note(session, *still, needs_write=needs_write) < len(ids):
            raise db.RestartTransaction
    if left_too:
        left = sa.and_(handle.deployable_id == deployable.id, handle.is_left)
        values = {"needs_write": needs_write, "updated_at": handle.updated_at}
        db.update(session, handle, left, **values)


def _users(session: orm.Session, deployable_id: int) -> list[models.Arq]:
    return list(session.scalars(_users_of_one(), {_ONE.key: [deployable_id]}))


@functools.cache
def _users_of_one() -> sa.Select[models.Arq]:
    uses = users(_ONE)
    return (
        sa.select(models.Arq)
        .join(uses, uses.c.arq_id == models.Arq.id)
        .order_by(models.Arq.id)
        .execution_options(populate_existing=True)
    )


def _left(
    session: orm.Session, deployable: models.Deployable
) -> list[tuple[models.AttachHandle, str]]:
    """The handles of a deployable that are not clean, each with the provider of its own."""
    found = session.execute(_left_of_one(), {_ONE.key: [deployable.id]})
    return [(handle, rp_uuid) for handle, rp_uuid in found]


@functools.cache
def _left_of_one() -> sa.Select[models.AttachHandle, str]:
    left, handle, row = unclean(_ONE), models.AttachHandle, models.Deployable
    return (
        sa.select(handle, row.rp_uuid)
        .join(left, left.c.handle_id == handle.id)
        .join(row, row.id == handle.deployable_id)
        .order_by(handle.id)
        .execution_options(populate_existing=True)
    )


def _waits_for(arq: models.Arq, what: program.Program) -> bool:
    return arq.state == models.BIND_STARTED and program.of_group(arq.request).agrees(what)


def _sentence(arq: models.Arq, deployable: models.Deployable) -> str:
    it = _it(arq.device_rp_uuid, deployable)
    return f"ARQ {arq.uuid} of instance {arq.consumer_uuid} has {it} ({arq.state})."


def _it(rp_uuid: str | None, deployable: models.Deployable) -> str:
    is_own = rp_uuid == deployable.rp_uuid
    return "it" if is_own else "a deployable of its device that is missing, or a part of it"
