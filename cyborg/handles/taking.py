# SPDX-License-Identifier: Apache-2.0
"""The attach handles of a deployable that a bind may take."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db import models

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
_FREE = {False: _NOT_HELD, True: (*_NOT_HELD, ~_dirty_part())}
#: Made once, since making them takes longer than running them.
_LOCK = {
    is_one: sa.select(_HANDLES.c.id, _HANDLES.c.uuid, _HANDLES.c.attach_type)
    .where(*free)
    .order_by(_HANDLES.c.id)
    .limit(sa.bindparam("count", type_=sa.Integer()))
    .with_for_update(of=_HANDLES, skip_locked=True)
    for is_one, free in _FREE.items()
}
_COUNT = {
    is_one: sa.select(sa.func.count()).select_from(_HANDLES).where(*free)
    for is_one, free in _FREE.items()
}


def lock(
    session: orm.Session, deployable_id: int, count: int, *, is_one: bool
) -> list[sa.Row[int, str, str]]:
    """At most ``count`` free handles of the deployable, locked.

    ``is_one``: it is one accelerator, however many handles it has.

    :raises RestartTransaction: there are fewer, and others have locked some that may stay free
    """
    which = {"deployable": deployable_id}
    found = list(session.execute(_LOCK[is_one], {**which, "count": count}))
    if len(found) < count:
        # What others have locked is not taken yet: they may still roll back.
        committed = session.scalar(_COUNT[is_one], which)
        if (committed or 0) > len(found):
            raise db.RestartTransaction
    return found
