# SPDX-License-Identifier: Apache-2.0
"""The attach handles of a deployable that a bind may take."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db import models
from cyborg.db.providers import ProviderRow
from cyborg.drivers import base

#: Tables, since statements of models take half as long again.
_HANDLES: Any = models.AttachHandle.__table__
_ARQS: Any = models.Arq.__table__
_OF_DEPLOYABLE: sa.BindParameter[int] = sa.bindparam("deployable")


def _dirty_part() -> sa.Exists:
    """A handle of the deployable was left, and is not clean yet."""
    part = orm.aliased(models.AttachHandle)
    dirty = sa.select(part.id).where(part.deployable_id == _OF_DEPLOYABLE, part.is_left)
    return dirty.correlate(None).exists()


def _others(deployable: Any) -> sa.Select[int]:
    """The handles of a deployable that another project has."""
    part, arq = orm.aliased(models.AttachHandle), orm.aliased(models.Arq)
    held = sa.select(part.id).join(arq, arq.attach_handle_id == part.id)
    foreign = arq.project_id.is_distinct_from(sa.bindparam("project", type_=sa.String()))
    return held.where(part.deployable_id == deployable, foreign)


_NOT_HELD = (
    _HANDLES.c.deployable_id == _OF_DEPLOYABLE,
    _HANDLES.c.missing.is_(False),
    ~models.AttachHandle.is_kept,
)
#: What makes a handle free, by whether its deployable is one accelerator: none of a card is given
#: out before all of it is clean.
_FREE_OF = {False: _NOT_HELD, True: (*_NOT_HELD, ~_dirty_part())}


def _used_of_device(*, nodes: bool) -> sa.Exists:
    """Device nodes of the deployable's device are in use, or else anything of it but nodes."""
    row, part = orm.aliased(models.Deployable), orm.aliased(models.Deployable)
    other = orm.aliased(models.AttachHandle)
    device = sa.select(row.device_id).where(row.id == _OF_DEPLOYABLE).scalar_subquery()
    found = sa.select(other.id).join(part, part.id == other.deployable_id)
    kind = other.attach_type == base.NODES if nodes else other.attach_type != base.NODES
    found = found.where(part.device_id == device, kind, other.is_kept)
    return found.correlate(None).exists()


_IS_NODES = _HANDLES.c.attach_type == base.NODES
#: A guest gets no device nodes of the host, nor a card of which containers have some.
_FOR_GUESTS = sa.and_(sa.not_(_IS_NODES), ~_used_of_device(nodes=True))
_IN_ONE_FORM = sa.or_(_FOR_GUESTS, sa.and_(_IS_NODES, ~_used_of_device(nodes=False)))
#: The conditions of a free handle, by ``is_one`` and ``for_guest``.
_FREE = {
    (is_one, for_guest): (*free, _FOR_GUESTS if for_guest else _IN_ONE_FORM)
    for is_one, free in _FREE_OF.items()
    for for_guest in (False, True)
}
#: Made once, since making them takes longer than running them.
_LOCK = {
    which: sa.select(_HANDLES.c.id, _HANDLES.c.uuid, _HANDLES.c.attach_type)
    .where(*free)
    .order_by(_HANDLES.c.id)
    .limit(sa.bindparam("count", type_=sa.Integer()))
    .with_for_update(of=_HANDLES, skip_locked=True)
    for which, free in _FREE.items()
}
_COUNT = {
    which: sa.select(sa.func.count()).select_from(_HANDLES).where(*free)
    for which, free in _FREE.items()
}

#: All handles of a card with shares. Who takes one waits for others that take or release any.
_LOCK_CARD = sa.select(_HANDLES.c.id).where(_HANDLES.c.deployable_id == _OF_DEPLOYABLE)
_LOCK_CARD = _LOCK_CARD.order_by(_HANDLES.c.id).with_for_update()
_FREE_SHARE = (*_FREE_OF[True], _IS_NODES)
_OF_NO_OTHER = ~_others(_OF_DEPLOYABLE).correlate(None).exists()
_SHARES = {
    mixed: sa.select(_HANDLES.c.id, _HANDLES.c.uuid, _HANDLES.c.attach_type)
    .where(*_FREE_SHARE, *(() if mixed == base.OF_ALL_PROJECTS else (_OF_NO_OTHER,)))
    .order_by(_HANDLES.c.id)
    .limit(sa.bindparam("count", type_=sa.Integer()))
    for mixed in (base.OF_ONE_PROJECT, base.OF_ALL_PROJECTS)
}


def lock_shares(
    session: orm.Session, card: ProviderRow, count: int, project_id: str | None
) -> list[sa.Row[int, str, str]]:
    """At most ``count`` free shares of a card, locked; none that the project may not have."""
    which = {"deployable": card.id}
    session.execute(_LOCK_CARD, which)
    query = _SHARES[card.shared or base.OF_ONE_PROJECT]
    return list(session.execute(query, {**which, "count": count, "project": project_id}))


def of_other_projects(cards: Collection[ProviderRow], project_id: str | None) -> set[str]:
    """The providers of cards that others have shares of, so that this project gets none."""
    ids = {card.id for card in cards if card.shared == base.OF_ONE_PROJECT}
    if not ids:
        return set()
    row = models.Deployable
    query = sa.select(row.rp_uuid).where(row.id.in_(ids), _others(row.id).correlate(row).exists())
    with db.reader() as session:
        return set(session.scalars(query, {"project": project_id}))


def lock(
    session: orm.Session, deployable_id: int, count: int, *, is_one: bool, for_guest: bool
) -> list[sa.Row[int, str, str]]:
    """At most ``count`` free handles of the deployable, locked.

    ``is_one``: it is one accelerator, however many handles it has. ``for_guest``: one of those that
    take them is no container.

    :raises RestartTransaction: there are fewer, and others have locked some that may stay free
    """
    which, kind = {"deployable": deployable_id}, (is_one, for_guest)
    found = list(session.execute(_LOCK[kind], {**which, "count": count}))
    if len(found) < count:
        # What others have locked is not taken yet: they may still roll back.
        committed = session.scalar(_COUNT[kind], which)
        if (committed or 0) > len(found):
            raise db.RestartTransaction
    return found


def of_containers(session: orm.Session, deployable_ids: Collection[int]) -> Collection[int]:
    """The deployables whose handles are device nodes, which no guest gets."""
    if not deployable_ids:
        return ()
    which, kind = _HANDLES.c.deployable_id, _HANDLES.c.attach_type
    query = sa.select(which).where(which.in_(deployable_ids)).group_by(which)
    query = query.having(sa.func.min(kind) == base.NODES, sa.func.max(kind) == base.NODES)
    return set(session.scalars(query))
