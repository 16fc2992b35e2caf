# SPDX-License-Identifier: Apache-2.0
"""Lists and lookups of devices and deployables for the REST API."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, errors
from cyborg.db import models, paging
from cyborg.drivers import base

HEALTHY = "healthy"
UNHEALTHY = "unhealthy"

#: Columns by which a list may be sorted and filtered; the names are those of the REST API.
DEVICE_COLUMNS: dict[str, Any] = {
    "id": models.Device.id,
    "uuid": models.Device.uuid,
    "type": models.Device.type,
    "vendor": models.Device.vendor,
    "model": models.Device.model,
    "hostname": models.Host.node,
    "status": models.Device.status,
    "created_at": models.Device.created_at,
    "updated_at": models.Device.updated_at,
}
DEPLOYABLE_COLUMNS: dict[str, Any] = {
    "id": models.Deployable.id,
    "uuid": models.Deployable.uuid,
    "name": models.Deployable.name,
    "num_accelerators": models.Deployable.num_accelerators,
    "device_id": models.Deployable.device_id,
    "device_uuid": models.Device.uuid,
    "rp_uuid": models.Deployable.rp_uuid,
    "driver_name": models.Deployable.driver_name,
    "created_at": models.Deployable.created_at,
    "updated_at": models.Deployable.updated_at,
}

#: What a list of devices can be filtered by.
_DEVICE_FILTERS = {
    **DEVICE_COLUMNS,
    "missing": models.Device.missing,
    "managed_by": models.Host.managed_by,
    "tainted": models.Device.tainted,
    "health": sa.case((models.Device.unhealthy.is_(None), HEALTHY), else_=UNHEALTHY),
}
_OF_DEVICES = (
    orm.contains_eager(models.Device.host),
    orm.contains_eager(models.Device.control_path),
)
# With an inner join MariaDB would begin at the smaller table, and sort all rows to cut a page.
_DEVICES = (
    sa.select(models.Device)
    .outerjoin(models.Device.host)
    .outerjoin(models.Device.control_path)
)

@dataclass(frozen=True, slots=True)
class Deployable:
    """A deployable as answers show it; a list of mapped objects would take twice the time."""

    #: In the order in which they were made.
    attributes: Mapping[str, str]
    id: int
    uuid: str
    parent_id: int | None
    root_id: int | None
    name: str
    num_accelerators: int
    device_id: int
    device_uuid: str
    rp_uuid: str
    driver_name: str
    program_mode: str | None
    is_settled: bool
    bitstream_id: str | None
    function_id: str | None
    function_name: str | None
    programmed_ms: int | None
    programmed_by: str | None
    verified_by: str | None
    withheld: str | None
    created_at: datetime.datetime
    updated_at: datetime.datetime | None


_SHOWN: tuple[Any, ...] = tuple(
    models.Device.uuid if each.name == "device_uuid" else getattr(models.Deployable, each.name)
    for each in dataclasses.fields(Deployable)
    if each.name != "attributes"
)
_DEPLOYABLES = (
    sa.select(*_SHOWN).select_from(models.Deployable).outerjoin(models.Deployable.device)
)
#: The name of a deployable's host as Nova knows it; only who asks for it pays for it.
_NODE = (
    sa.select(models.Host.node)
    .where(models.Host.id == models.Device.host_id)
    .correlate(models.Device)
    .scalar_subquery()
)
_ATTRIBUTES = (
    sa.select(models.Attribute.deployable_id, models.Attribute.key, models.Attribute.value)
    .where(models.Attribute.deployable_id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(models.Attribute.id)
)


def address(device: models.Device) -> str:
    """Where a device is on its host, as people read it."""
    return base.place(json.loads(device.control_path.cpid_info))


def list_devices(page: paging.Page = paging.ALL, **wanted: str | bool) -> list[models.Device]:
    """Devices that have the values ``wanted``, with hosts and control paths, from one SELECT.

    :raises Invalid: the sort key or the marker is unknown
    """
    with db.reader() as session:
        return paging.fetch(
            session,
            _DEVICES,
            DEVICE_COLUMNS,
            page,
            wanted,
            filters=_DEVICE_FILTERS,
            options=_OF_DEVICES,
        )


def get_device(uuid: str) -> models.Device:
    """The device of that uuid with its host and control path.

    :raises NotFound: there is no such device
    """
    with db.reader() as session:
        return paging.get(
            session, _DEVICES, DEVICE_COLUMNS, "Device", options=_OF_DEVICES, uuid=uuid
        )


def list_deployables(page: paging.Page = paging.ALL, **wanted: str | int) -> list[Deployable]:
    """Deployables that have the values ``wanted``, with their attributes, from two SELECTs.

    :raises Invalid: the sort key or the marker is unknown
    """
    with db.reader() as session:
        select = paging.select(
            session,
            _DEPLOYABLES,
            DEPLOYABLE_COLUMNS,
            page,
            wanted,
            filters={**DEPLOYABLE_COLUMNS, "hostname": _NODE},
        )
        return _with_attributes(session, session.execute(select).all())


def get_deployable(uuid: str) -> Deployable:
    """The deployable of that uuid with its attributes.

    :raises NotFound: there is no such deployable
    """
    with db.reader() as session:
        query = _DEPLOYABLES.where(models.Deployable.uuid == uuid)
        for found in _with_attributes(session, session.execute(query).all()):
            return found
    raise errors.NotFound.of("Deployable", uuid=uuid)


def _with_attributes(
    session: orm.Session, rows: Iterable[tuple[Any, ...]]
) -> list[Deployable]:
    """Deployables of rows that begin with the id."""
    attributes: dict[int, dict[str, str]] = {row[0]: {} for row in rows}
    if attributes:
        for deployable_id, key, value in session.execute(_ATTRIBUTES, {"ids": list(attributes)}):
            attributes[deployable_id][key] = value
    return [Deployable(attributes[row[0]], *row) for row in rows]
