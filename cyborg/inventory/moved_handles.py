# SPDX-License-Identifier: Apache-2.0
"""What is reported as a part of one deployable while it is held as a part of another.

A deployable may get another name, or its functions be grouped otherwise, while guests have some of
them. Nobody else is given those until they are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import models
from cyborg.drivers import base

Reported = Mapping[str, Sequence[base.Device]]
_Key = tuple[str, str]


def leave_out(
    known: Iterable[models.Device], reported: Reported, failed_drivers: Set[str]
) -> tuple[Reported, Set[str]]:
    """The report less what others have on the host, and the infos of handles that moved.

    Guests have what they hold, and a driver that cannot tell has what it has reported before.
    """
    told = {
        (part.name, _key(handle))
        for devices in reported.values()
        for device in devices
        for part in device.deployables
        for handle in part.attach_handles
    }
    handles = {
        (row.name, (handle.attach_type, handle.attach_info)): (
            handle.arq is not None or device.driver in failed_drivers
        )
        for device in known
        for row in device.deployables
        for handle in row.attach_handles
    }
    gone = {place: is_kept for place, is_kept in handles.items() if place not in told}
    new = told - handles.keys()
    moved = {key for _, key in gone} & {key for _, key in new}
    if not moved:
        return reported, set()
    kept = {key for (_, key), is_kept in gone.items() if is_kept}
    taken = {place for place in new if place[1] in kept}
    left = {
        driver: tuple(
            replace(device, deployables=tuple(_free(each, taken) for each in device.deployables))
            for device in devices
        )
        for driver, devices in reported.items()
    }
    return left, {info for _, info in moved}


def _free(deployable: base.Deployable, taken: Set[tuple[str, _Key]]) -> base.Deployable:
    handles = tuple(
        each for each in deployable.attach_handles if (deployable.name, _key(each)) not in taken
    )
    number = min(deployable.num_accelerators, len(handles))
    return replace(deployable, attach_handles=handles, num_accelerators=number)


def _key(handle: base.AttachHandle) -> _Key:
    return handle.attach_type, base.canonical_json(dict(handle.attach_info))


def ids(known: Iterable[models.Device]) -> frozenset[int]:
    """The attach handles that there are."""
    return frozenset(
        handle.id
        for device in known
        for row in device.deployables
        for handle in row.attach_handles
    )


def is_doubled(
    session: orm.Session, host_id: int, moved: Set[str], before: Set[int]
) -> bool:
    """Whether one that moved is held where it was: it was taken since we looked.

    ``before`` are the handles that there were: of those that are the same a driver knows why.
    """
    if not moved:
        return False
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
            handle.attach_info.in_(moved),
            other.missing.is_(False),
            other.id.not_in(before),
            handle.deployable_id.in_(of_host),
            other.deployable_id.in_(of_host),
        )
        .limit(1)
    )
    return session.scalar(query) is not None
