# SPDX-License-Identifier: Apache-2.0
"""The accelerators of each host and resource class in numbers, which SQL counts."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db import models
from cyborg.drivers import base
from cyborg.states import availability

HOSTNAME, RESOURCE_CLASS = "hostname", "resource_class"
#: All but the first add up to the first.
NUMBERS = ("total", "used", "free", "preparing", "out_of_service")

_HANDLE, _ARQ, _DEPLOYABLE = models.AttachHandle, models.Arq, models.Deployable
_HOST, _CLASS = models.Host, models.Attribute


def list_rows(limit: int, marker: str | None, **wanted: str) -> list[dict[str, Any]]:
    """At most ``limit`` rows, by host and resource class, after the :func:`marker_of` a row."""
    each = _deployables(**wanted)
    keys = (each.c[HOSTNAME], each.c[RESOURCE_CLASS])
    query = _sums(each, *keys).limit(limit)
    if marker is not None:
        host, _, name = marker.rpartition(" ")
        same_host = sa.and_(keys[0] == host, keys[1] > name)
        query = query.where(sa.or_(keys[0] > host, same_host))
    return _read(query)


def list_totals(**wanted: str) -> list[dict[str, Any]]:
    """The numbers of all hosts together, a row for each resource class."""
    each = _deployables(**wanted)
    return _read(_sums(each, each.c[RESOURCE_CLASS]))


def marker_of(row: dict[str, Any]) -> str:
    """A text that names a row."""
    return f"{row[HOSTNAME]} {row[RESOURCE_CLASS]}"


def _sums(each: sa.Subquery, *keys: sa.ColumnElement[str]) -> sa.Select[Any]:
    sums = [sa.func.sum(each.c[name]).label(name) for name in NUMBERS]
    columns: list[sa.ColumnElement[Any]] = [*keys, *sums]
    return sa.select(*columns).group_by(*keys).order_by(*keys)


@db.retry
def _read(query: sa.Select[Any]) -> list[dict[str, Any]]:
    with db.reader() as session:
        found = [dict(row) for row in session.execute(query).mappings()]
    # Servers add whole numbers up to decimal ones.
    return [row | {name: int(row[name]) for name in NUMBERS} for row in found]


def _deployables(**wanted: str) -> sa.Subquery:
    """The numbers of each deployable, with its host and its resource class."""
    handles = _handles()
    held, left, there = (
        sa.func.coalesce(handles.c[name], 0) for name in ("held", "left", "there")
    )
    busy, number = held + left, _DEPLOYABLE.num_accelerators
    total = sa.case((number < busy, busy), else_=number)
    free = sa.case(
        (availability.on_offer(), availability.free_accelerators(there, busy)), else_=0
    )
    waits = sa.and_(availability.usable(), ~availability.on_offer())
    preparing = left + sa.case((waits, total - busy), else_=0)
    numbers = (total, held, free, preparing, total - held - free - preparing)
    is_class = sa.and_(
        _CLASS.deployable_id == _DEPLOYABLE.id, _CLASS.key == base.RESOURCE_CLASS_KEY
    )
    columns = {HOSTNAME: _HOST.node, RESOURCE_CLASS: _CLASS.value}
    return (
        sa.select(
            *(column.label(name) for name, column in columns.items()),
            *(count.label(name) for name, count in zip(NUMBERS, numbers, strict=True)),
        )
        .select_from(_DEPLOYABLE)
        .join(_DEPLOYABLE.device)
        .join(models.Device.host)
        .join(_CLASS, is_class)
        .outerjoin(handles, handles.c.deployable_id == _DEPLOYABLE.id)
        .where(*(columns[name] == value for name, value in wanted.items()))
        .subquery()
    )


def _handles() -> sa.Subquery:
    """How many handles of each deployable are held, not clean, and neither of both."""
    handle, arq = orm.aliased(_HANDLE), orm.aliased(_ARQ)
    left = sa.and_(arq.id.is_(None), handle.is_left)
    there = sa.and_(~handle.is_kept_beside(arq), handle.missing.is_(False))
    return (
        sa.select(
            handle.deployable_id,
            sa.func.count(arq.id).label("held"),
            *(
                sa.func.sum(sa.case((condition, 1), else_=0)).label(name)
                for name, condition in (("left", left), ("there", there))
            ),
        )
        .outerjoin(arq, arq.attach_handle_id == handle.id)
        .group_by(handle.deployable_id)
        .subquery()
    )
