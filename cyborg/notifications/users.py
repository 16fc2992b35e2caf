# SPDX-License-Identifier: Apache-2.0
"""The users that notifications about devices and hosts name: those who have a part of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg.db import models
from cyborg.notifications import notices
from cyborg.notifications.notices import DevicePayload, HostPayload, Notice, User


def name(session: orm.Session, found: Sequence[Notice]) -> list[Notice]:
    """The notices with the users of their devices and hosts. One SELECT for each of both kinds."""
    devices = {each.payload.uuid for each in found if isinstance(each.payload, DevicePayload)}
    hosts = {each.payload.name for each in found if isinstance(each.payload, HostPayload)}
    of_device = _users(session, models.Device.uuid, devices)
    of_host = _users(session, models.Host.name, hosts)
    named: list[Notice] = []
    for notice in found:
        match notice.payload:
            case DevicePayload() as device:
                users = of_device.get(device.uuid, ())
                named.append(notice._replace(payload=replace(device, users=users)))
            case HostPayload() as host:
                users = of_host.get(host.name, ())
                named.append(notice._replace(payload=replace(host, users=users)))
            case _:
                named.append(notice)
    return named


def _users(
    session: orm.Session, key: orm.InstrumentedAttribute[str], values: Collection[str]
) -> dict[str, list[User]]:
    if not values:
        return {}
    arq, handle, deployable = models.Arq, models.AttachHandle, models.Deployable
    of_these = (
        sa.select(key, arq.uuid, arq.project_id, arq.consumer_uuid, arq.id.label("arq_id"))
        .select_from(deployable)
        .join(models.Device, models.Device.id == deployable.device_id)
        .join(models.Host, models.Host.id == models.Device.host_id)
        .where(key.in_(values))
    )
    holders = of_these.join(handle, handle.deployable_id == deployable.id).join(
        arq, arq.attach_handle_id == handle.id
    )
    waiting = of_these.join(arq, arq.device_rp_uuid == deployable.rp_uuid).where(
        arq.state == models.BIND_STARTED, arq.attach_handle_id.is_(None)
    )
    # An OR in place of the UNION would read all ARQs.
    rows = session.execute(sa.union_all(holders, waiting).order_by("arq_id")).all()
    found: dict[str, list[User]] = {}
    for value, uuid, project_id, consumer_uuid, _ in rows:
        users = found.setdefault(value, [])
        if len(users) < notices.USERS_MAX:
            user = User(arq_uuid=uuid, project_id=project_id, instance_uuid=consumer_uuid)
            users.append(user)
    return found
