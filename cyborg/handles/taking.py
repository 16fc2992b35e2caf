# SPDX-License-Identifier: Apache-2.0
"""The attach handles of a deployable that a bind may take."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db import models
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


_NOT_HELD = (
    _HANDLES.c.deployable_id == _OF_DEPLOYABLE,
    _HANDLES.c.missing.is_(False),
    ~models.AttachHandle.is_left,
    ~sa.exists().where(_ARQS.c.attach_handle_id == _HANDLES.c.id),
)
#: What makes a handle free, by whether its deployable is one accelerator: none of a card is given
#: out before all of it is clean.
_FREE_OF = {False: _NOT_HELD, True: (*_NOT_HELD, ~_dirty_part())}
#: A guest gets no device nodes of the host.
_FOR_GUESTS = _HANDLES.c.attach_type != base.NODES
#: The conditions of a free handle, by ``is_one`` and ``for_guest``.
_FREE = {
    (is_one, for_guest): (*free, _FOR_GUESTS) if for_guest else free
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
