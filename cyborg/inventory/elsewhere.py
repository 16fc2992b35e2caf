# SPDX-License-Identifier: Apache-2.0
"""What is reported as a part of one deployable while it is held as a part of another.

A deployable may get another name, or its functions be grouped otherwise, while guests have some of
them. Nobody else is given those until they are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import models
from cyborg.drivers import base

Reported = Mapping[str, Sequence[base.Device]]
_Key = tuple[str, str]


def leave_out(known: Iterable[models.Device], reported: Reported) -> tuple[Reported, bool]:
    """The report less what is held elsewhere on the host, and whether any handle has moved."""
    rows = [row for device in known for row in device.deployables]
    handles = [(row.name, handle) for row in rows for handle in row.attach_handles]
    places = {(handle.attach_type, handle.attach_info): name for name, handle in handles}
    moved = any(
        places.get(_key(handle), part.name) != part.name
        for devices in reported.values()
        for device in devices
        for part in device.deployables
        for handle in part.attach_handles
    )
    if not moved:
        return reported, False
    holders = {
        (handle.attach_type, handle.attach_info): name for name, handle in handles if handle.arq
    }
    left = {
        driver: tuple(
            replace(device, deployables=tuple(_free(each, holders) for each in device.deployables))
            for device in devices
        )
        for driver, devices in reported.items()
    }
    return left, True


def _free(deployable: base.Deployable, holders: Mapping[_Key, str]) -> base.Deployable:
    handles = tuple(
        handle
        for handle in deployable.attach_handles
        if holders.get(_key(handle), deployable.name) == deployable.name
    )
    number = min(deployable.num_accelerators, len(handles))
    return replace(deployable, attach_handles=handles, num_accelerators=number)


def _key(handle: base.AttachHandle) -> _Key:
    return handle.attach_type, base.canonical_json(dict(handle.attach_info))


def is_doubled(session: orm.Session, host_id: int) -> bool:
    """Whether a handle that is there is held as one that is not: it was taken since we looked."""
    handle, deployable, device = models.AttachHandle, models.Deployable, models.Device
    of_host = sa.select(deployable.id).join(device).where(device.host_id == host_id)
    other = orm.aliased(handle)
    query = (
        sa.select(handle.id)
        .join(models.Arq, models.Arq.attach_handle_id == handle.id)
        .join(
            other,
            sa.and_(
                other.attach_type == handle.attach_type, other.attach_info == handle.attach_info
            ),
        )
        .where(
            handle.missing.is_(True),
            other.missing.is_(False),
            handle.deployable_id.in_(of_host),
            other.deployable_id.in_(of_host),
        )
        .limit(1)
    )
    return session.scalar(query) is not None
