# SPDX-License-Identifier: Apache-2.0
"""Deployables as plain rows, by their resource providers: what a bind is judged by.

Models with the same facts take several times as long to read.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.common import program_modes
from cyborg.db import models


@dataclass(frozen=True, slots=True)
class HostRow:
    """What is read of a :class:`models.Host`, in the order of the columns."""

    id: int
    name: str
    node: str
    down: bool
    drained: bool
    removed: bool
    tainted: bool


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """What is read of a :class:`models.Device`, likewise."""

    host: HostRow
    id: int
    uuid: str
    host_id: int
    status: str
    unhealthy: str | None
    tainted: bool


@dataclass(frozen=True, slots=True)
class ProviderRow:
    """What is read of a :class:`models.Deployable`, likewise, and of its resource provider."""

    device: DeviceRow
    #: Of a part of a layout, with the state of the deployable that has the layout.
    record: models.ProgramRecord
    #: In the order in which its attributes were made.
    facts: list[models.Fact]
    id: int
    uuid: str
    name: str
    rp_uuid: str
    num_accelerators: int
    function_vendor: str
    prepares: bool
    shared: str | None
    missing: bool
    #: The deployable whose layout this one is a part of.
    part_of: int | None
    withheld: str | None


def _columns(model: type[models.Base], row: type[Any], *others: str) -> list[sa.ColumnElement[Any]]:
    """The columns of a table for a row of that type, but for fields that are no columns of it."""
    names = [field.name for field in fields(row) if field.name not in others]
    return [model.__table__.c[name] for name in names]


_FACT = [models.Attribute.__table__.c[name] for name in models.Fact._fields]
_HOST = _columns(models.Host, HostRow)
_DEVICE = _columns(models.Device, DeviceRow, "host")
_deployables, _devices = models.Deployable.__table__, models.Device.__table__
_cards = _deployables.alias("cards")
#: The state of the program: that of the deployable above, where that has a layout.
_SHARED = sa.func.coalesce(_cards.c.program_state, _deployables.c.program_state)
_RECORD = [
    _SHARED if column.name == "program_state" else column
    for column in _columns(models.Deployable, models.ProgramRecord)
]
_PROVIDER = _columns(
    models.Deployable, ProviderRow, "device", "record", "facts", "part_of", "withheld"
)
_hosts, _attributes = models.Host.__table__, models.Attribute.__table__
_resources = models.ResourceProvider.__table__
#: Made once, since making it takes longer than running it. A row for each attribute.
_READ = (
    sa.select(*_FACT, *_HOST, *_DEVICE, *_RECORD, *_PROVIDER, _cards.c.id, _resources.c.withheld)
    .select_from(_deployables)
    .join(_devices, _devices.c.id == _deployables.c.device_id)
    .join(_hosts, _hosts.c.id == _devices.c.host_id)
    .outerjoin(
        _cards,
        sa.and_(
            _cards.c.id == _deployables.c.parent_id, _cards.c.program_mode == program_modes.LAYOUT
        ),
    )
    .outerjoin(_resources, _resources.c.uuid == _deployables.c.rp_uuid)
    .outerjoin(_attributes, _attributes.c.deployable_id == _deployables.c.id)
    .where(_deployables.c.rp_uuid.in_(sa.bindparam("uuids", expanding=True)))
    .order_by(_attributes.c.id)
)
#: Where in such a row the next part of it begins.
_OF_HOST = len(_FACT)
_OF_DEVICE = _OF_HOST + len(_HOST)
_OF_RECORD = _OF_DEVICE + len(_DEVICE)
_OF_PROVIDER = _OF_RECORD + len(_RECORD)


def read(session: orm.Session, uuids: Collection[str]) -> dict[str, ProviderRow]:
    """Deployables by the uuids of their providers. One SELECT."""
    found: dict[int, ProviderRow] = {}
    rows: Any = session.execute(_READ, {"uuids": list(uuids)})
    for row in rows:
        provider = found.get(row[_OF_PROVIDER])
        if provider is None:
            host = HostRow(*row[_OF_HOST:_OF_DEVICE])
            device = DeviceRow(host, *row[_OF_DEVICE:_OF_RECORD])
            record = models.ProgramRecord(*row[_OF_RECORD:_OF_PROVIDER])
            provider = ProviderRow(device, record, [], *row[_OF_PROVIDER:])
            found[provider.id] = provider
        if row[0] is not None:
            provider.facts.append(models.Fact(*row[:_OF_HOST]))
    return {each.rp_uuid: each for each in found.values()}
