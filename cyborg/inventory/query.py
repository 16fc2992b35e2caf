# SPDX-License-Identifier: Apache-2.0
"""Lists and lookups of devices and deployables for the REST API."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.common import errors
from cyborg.db import models, paging
from cyborg.drivers import base

DEVICE_TYPES = sorted(base.DEVICE_TYPES)
HEALTHY = "healthy"
UNHEALTHY = "unhealthy"

_HOST, _DEVICE, _PATH = (
    each.__table__.c for each in (models.Host, models.Device, models.ControlPath)
)
_DEPLOYABLE, _PROVIDER = (
    each.__table__.c for each in (models.Deployable, models.ResourceProvider)
)

#: Columns by which a list may be sorted and filtered; the names are those of the REST API.
DEVICE_COLUMNS = paging.columns(
    _DEVICE,
    *("id", "uuid", "type", "vendor", "model", "hostname", "status", "created_at", "updated_at"),
    hostname=_HOST.node,
)
DEPLOYABLE_COLUMNS = paging.columns(
    _DEPLOYABLE,
    *("id", "uuid", "name", "num_accelerators", "device_id", "device_uuid", "rp_uuid"),
    *("driver_name", "created_at", "updated_at"),
    device_uuid=_DEVICE.uuid,
)

#: What a list of devices can be filtered by.
_DEVICE_FILTERS = {
    **DEVICE_COLUMNS,
    "missing": _DEVICE.missing,
    "managed_by": _HOST.managed_by,
    "tainted": _DEVICE.tainted,
    "health": sa.case((_DEVICE.unhealthy.is_(None), HEALTHY), else_=UNHEALTHY),
}


class ShownDevice(NamedTuple):
    """A device as answers show it; a mapped object would take twice the time."""

    uuid: str
    type: str
    vendor: str
    model: str
    std_board_info: str | None
    vendor_board_info: str | None
    status: str
    disabled_reason: str | None
    tainted: bool
    taint_reason: str | None
    unhealthy: str | None
    missing: bool
    created_at: datetime.datetime
    updated_at: datetime.datetime | None
    node: str
    managed_by: str
    cpid_info: str
    #: Readings of its sensors at the last report; None in a list.
    readings: Mapping[str, float] | None = None

    @property
    def address(self) -> str:
        """The place on its host, as people read it."""
        return base.place(json.loads(self.cpid_info))


_OF_DEVICE = dict(_DEVICE.items()) | {
    "node": _HOST.node,
    "managed_by": _HOST.managed_by,
    "cpid_info": _PATH.cpid_info,
}
# With an inner join MariaDB would begin at the smaller table, and sort all rows to cut a page.
_DEVICES = (
    sa.select(*(_OF_DEVICE[name] for name in ShownDevice._fields[:-1]))
    .select_from(models.Device.__table__)
    .outerjoin(models.Host.__table__, _HOST.id == _DEVICE.host_id)
    .outerjoin(models.ControlPath.__table__, _PATH.device_id == _DEVICE.id)
)
#: Readings of the host of a device, unless they are of the past.
_READINGS = sa.case((sa.and_(~_HOST.down, ~_DEVICE.missing), _HOST.readings))


class ShownDeployable(NamedTuple):
    """A deployable as answers show it, likewise."""

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
    program_state: str
    bitstream_id: str | None
    function_id: str | None
    function_name: str | None
    programmed_ms: int | None
    programmed_by: str | None
    verified_by: str | None
    withheld: str | None
    created_at: datetime.datetime
    updated_at: datetime.datetime | None
    #: In the order in which they were made.
    attributes: Mapping[str, str]

    @property
    def in_doubt(self) -> bool:
        """It is being written, or was lost."""
        return self.program_state not in models.SETTLED


_OF_DEPLOYABLE = dict(_DEPLOYABLE.items()) | {
    "device_uuid": _DEVICE.uuid,
    "withheld": _PROVIDER.withheld,
}
_DEPLOYABLES = (
    sa.select(*(_OF_DEPLOYABLE[name] for name in ShownDeployable._fields[:-1]))
    .select_from(models.Deployable.__table__)
    .outerjoin(models.Device.__table__, _DEVICE.id == _DEPLOYABLE.device_id)
    .outerjoin(models.ResourceProvider.__table__, _PROVIDER.uuid == _DEPLOYABLE.rp_uuid)
)
#: The name of a deployable's host as Nova knows it; only who asks for it pays for it.
_NODE = (
    sa.select(_HOST.node)
    .where(_HOST.id == _DEVICE.host_id)
    .correlate(models.Device.__table__)
    .scalar_subquery()
)
_ATTRIBUTE = models.Attribute.__table__.c
_ATTRIBUTES = (
    sa.select(_ATTRIBUTE.deployable_id, _ATTRIBUTE["key"], _ATTRIBUTE.value)
    .where(_ATTRIBUTE.deployable_id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(_ATTRIBUTE.id)
)


def list_devices(page: paging.Page = paging.ALL, **wanted: str | bool) -> list[ShownDevice]:
    """Devices that have the values ``wanted``, with what is shown of their hosts; one SELECT.

    :raises Invalid: the sort key or the marker is unknown
    """
    with db.reader() as session:
        select = paging.select(
            session, _DEVICES, DEVICE_COLUMNS, page, wanted, filters=_DEVICE_FILTERS
        )
        return [ShownDevice(*row) for row in session.execute(select)]


def get_device(uuid: str, *, readings: bool = False) -> ShownDevice:
    """The device of that uuid, with what is shown of its host; with ``readings`` of its sensors.

    :raises NotFound: there is no such device
    """
    with db.reader() as session:
        query = _DEVICES.add_columns(_READINGS if readings else sa.null())
        for *row, read in session.execute(query.where(_DEVICE.uuid == uuid)):
            device = ShownDevice(*row)
            return device._replace(readings=(read or {}).get(device.address))
    raise errors.NotFound.of("Device", uuid=uuid)


def list_deployables(page: paging.Page = paging.ALL, **wanted: str | int) -> list[ShownDeployable]:
    """Deployables that have the values ``wanted``, with their attributes, from two SELECTs.

    :raises Invalid: the sort key or the marker is unknown
    """
    filters = {**DEPLOYABLE_COLUMNS, "hostname": _NODE}
    with db.reader() as session:
        select = paging.select(
            session, _DEPLOYABLES, DEPLOYABLE_COLUMNS, page, wanted, filters=filters
        )
        return _with_attributes(session, session.execute(select).all())


def get_deployable(uuid: str) -> ShownDeployable:
    """The deployable of that uuid with its attributes.

    :raises NotFound: there is no such deployable
    """
    with db.reader() as session:
        query = _DEPLOYABLES.where(_DEPLOYABLE.uuid == uuid)
        for found in _with_attributes(session, session.execute(query).all()):
            return found
    raise errors.NotFound.of("Deployable", uuid=uuid)


def _with_attributes(
    session: orm.Session, rows: Iterable[sa.Row[*tuple[Any, ...]]]
) -> list[ShownDeployable]:
    """Deployables of rows that begin with the id."""
    attributes: dict[int, dict[str, str]] = {row[0]: {} for row in rows}
    if attributes:
        for deployable_id, key, value in session.execute(_ATTRIBUTES, {"ids": list(attributes)}):
            attributes[deployable_id][key] = value
    return [ShownDeployable._make((*row, attributes[row[0]])) for row in rows]
