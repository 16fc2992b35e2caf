# SPDX-License-Identifier: Apache-2.0
"""Lists and lookups of devices and deployables for the REST API."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db
from cyborg.db import models, paging

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
    "tainted": models.Device.tainted,
    "health": sa.case((models.Device.unhealthy.is_(None), HEALTHY), else_=UNHEALTHY),
}
_OF_DEVICES = (orm.contains_eager(models.Device.host),)
#: Only what is shown: to load an object takes time for each of its columns.
_OF_DEPLOYABLES = (
    orm.contains_eager(models.Deployable.device).load_only(models.Device.uuid),
    orm.selectinload(models.Deployable.attributes).load_only(
        models.Attribute.key, models.Attribute.value
    ),
)

# With an inner join MariaDB would begin at the smaller table, and sort all rows to cut a page.
_DEVICES = sa.select(models.Device).outerjoin(models.Device.host)
_DEPLOYABLES = sa.select(models.Deployable).outerjoin(models.Deployable.device)


def list_devices(page: paging.Page = paging.ALL, **wanted: str | bool) -> list[models.Device]:
    """Devices that have the values ``wanted``, with their hosts, from one SELECT.

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
    """The device of that uuid with its host.

    :raises NotFound: there is no such device
    """
    with db.reader() as session:
        return paging.get(
            session, _DEVICES, DEVICE_COLUMNS, "Device", options=_OF_DEVICES, uuid=uuid
        )


def list_deployables(
    page: paging.Page = paging.ALL, **wanted: str | int
) -> list[models.Deployable]:
    """Deployables that have the values ``wanted``, with devices and attributes, from two SELECTs.

    :raises Invalid: the sort key or the marker is unknown
    """
    with db.reader() as session:
        return paging.fetch(
            session, _DEPLOYABLES, DEPLOYABLE_COLUMNS, page, wanted, options=_OF_DEPLOYABLES
        )


def get_deployable(uuid: str) -> models.Deployable:
    """The deployable of that uuid with its device and attributes.

    :raises NotFound: there is no such deployable
    """
    with db.reader() as session:
        return paging.get(
            session,
            _DEPLOYABLES,
            DEPLOYABLE_COLUMNS,
            "Deployable",
            options=_OF_DEPLOYABLES,
            uuid=uuid,
        )
