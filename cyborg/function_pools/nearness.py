# SPDX-License-Identifier: Apache-2.0
"""The nearness of deployables to those of a pool: on one card, linked, or near each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import models
from cyborg.function_pools import capacity

_POOL, _OPERATION = models.FunctionPool, models.Operation
_DEPLOYABLE, _DEVICE, _HOST = models.Deployable, models.Device, models.Host

#: The attributes that say where in its host a deployable is, the nearest first.
KEYS = ("link_group", "pcie_switch", "numa_node")
#: How many :func:`columns` there are.
WIDTH = 2 + len(KEYS)


#: Properties that a deployable may share with others, the nearest first; None if unknown.
Location = tuple[tuple[str, Any] | None, ...]


def location(row: Sequence[Any]) -> Location:
    """The location in a row of :func:`columns`."""
    card, host, *values = row
    named = zip(KEYS, values, strict=True)
    return ("card", card), *((key, (host, value)) if value else None for key, value in named)


@dataclass(slots=True)
class Neighbours:
    """The places that a pool has, and will have."""

    near: set[tuple[str, Any] | None] = field(default_factory=set)

    def add(self, place: Location) -> None:
        """One more deployable is the pool's."""
        self.near |= set(place) - {None}

    def distance(self, place: Location) -> int:
        """The distance to the nearest: 0 on its card, 1 linked to it, then its switch and node."""
        distances = (number for number, kind in enumerate(place) if kind in self.near)
        return next(distances, len(KEYS) + 1)


def columns() -> list[sa.ColumnElement[Any]]:
    """The card, the host, and the attributes of a query's deployables."""
    attribute = models.Attribute
    values: Iterable[sa.ColumnElement[Any]] = (
        sa.select(sa.func.max(attribute.value))
        .where(attribute.deployable_id == _DEPLOYABLE.id, attribute.key == key)
        .correlate_except(attribute)
        .scalar_subquery()
        for key in KEYS
    )
    return [_DEVICE.id.label("card"), _HOST.id.label("host"), *values]


def of_pool(session: orm.Session, pool: models.FunctionPool) -> Neighbours:
    """The deployables that run the function of a pool, or will soon. One SELECT."""
    coming = sa.exists().where(
        _OPERATION.active == _DEPLOYABLE.uuid, _OPERATION.pool_uuid == _POOL.uuid
    )
    query = (
        capacity.on_hosts(*columns())
        .join(_POOL, _POOL.id == pool.id)
        .where(
            capacity.matches(_POOL),
            sa.or_(capacity.runs(_POOL), coming.correlate_except(_OPERATION)),
        )
        .distinct()
    )
    found = Neighbours()
    for row in session.execute(query):
        found.add(location(row))
    return found
