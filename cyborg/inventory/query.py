# SPDX-License-Identifier: Apache-2.0
"""What hosts have, as the REST API shows it: devices and deployables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, errors
from cyborg.db import models, paging

HEALTHY = "healthy"
UNHEALTHY = "unhealthy"

#: Columns by which a list may be sorted and narrowed; the names are those of the REST API.
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


#: What a list of devices can be narrowed by besides.
_DEVICE_FILTERS = {
    **DEVICE_COLUMNS,
    "missing": models.Device.missing,
    "health": sa.case((models.Device.unhealthy.is_(None), HEALTHY), else_=UNHEALTHY),
}
_OF_DEVICES = (orm.contains_eager(models.Device.host),)
_OF_DEPLOYABLES = (
    orm.contains_eager(models.Deployable.device),
    orm.selectinload(models.Deployable.attributes),
)


def list_devices(page: paging.Page = paging.ALL, **wanted: str | bool) -> list[models.Device]:
    """Devices with their hosts; those only that have the values ``wanted``. From one SELECT.

    :raises Invalid: devices cannot be sorted by that key, or the marker is no device
    """
    where = paging.equal(_DEVICE_FILTERS, wanted)
    with db.reader() as session:
        return paging.fetch(
            session, _devices(), DEVICE_COLUMNS, page, where=where, options=_OF_DEVICES
        )


def get_device(uuid: str) -> models.Device:
    """The device of that uuid with its host.

    :raises NotFound: there is none
    """
    with db.reader() as session:
        device = session.scalar(_devices().where(models.Device.uuid == uuid).options(*_OF_DEVICES))
    if device is None:
        raise errors.NotFound.of("Device", uuid=uuid)
    return device


def list_deployables(
    page: paging.Page = paging.ALL, **wanted: str | int
) -> list[models.Deployable]:
    """Deployables with their devices and attributes; those only that have the values ``wanted``.

    From two SELECTs.

    :raises Invalid: deployables cannot be sorted by that key, or the marker is no deployable
    """
    where = paging.equal(DEPLOYABLE_COLUMNS, wanted)
    with db.reader() as session:
        return paging.fetch(
            session,
            _deployables(),
            DEPLOYABLE_COLUMNS,
            page,
            where=where,
            options=_OF_DEPLOYABLES,
        )


def get_deployable(uuid: str) -> models.Deployable:
    """The deployable of that uuid with its device and attributes.

    :raises NotFound: there is none
    """
    with db.reader() as session:
        query = _deployables().where(models.Deployable.uuid == uuid)
        deployable = session.scalar(query.options(*_OF_DEPLOYABLES))
    if deployable is None:
        raise errors.NotFound.of("Deployable", uuid=uuid)
    return deployable


def _devices() -> sa.Select[models.Device]:
    # MariaDB would begin an inner join at the smaller table, and sort all before it cuts a page.
    return sa.select(models.Device).outerjoin(models.Device.host)


def _deployables() -> sa.Select[models.Deployable]:
    return sa.select(models.Deployable).outerjoin(models.Deployable.device)
