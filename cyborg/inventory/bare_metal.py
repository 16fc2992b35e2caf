# SPDX-License-Identifier: Apache-2.0
"""Hosts that have no agent, whose devices only Ironic knows, and what ends that: a report."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, rpc
from cyborg.common import errors
from cyborg.db import models
from cyborg.inventory import diff

LOG = logging.getLogger(__name__)


def devices(session: orm.Session, host_ids: Iterable[int]) -> list[models.Device]:
    """The devices of hosts, with their control paths."""
    device = models.Device
    query = sa.select(device).where(device.host_id.in_(list(host_ids))).order_by(device.id)
    return list(session.scalars(query.options(orm.joinedload(device.control_path))))


def delete_devices(session: orm.Session, rows: Iterable[models.Device]) -> int:
    """Delete devices that have no deployables, and return how many."""
    ids = [row.id for row in rows]
    db.delete(session, models.ControlPath, models.ControlPath.device_id.in_(ids))
    return db.delete(session, models.Device, models.Device.id.in_(ids))


def forget(session: orm.Session, hosts: Sequence[models.Host]) -> int:
    """Delete hosts that have no agent, and return how many devices they had."""
    ids = [host.id for host in hosts]
    if not ids:
        return 0
    gone = delete_devices(session, devices(session, ids))
    db.delete(session, models.Host, models.Host.id.in_(ids))
    return gone


def refuse(host: models.Host, what: str) -> None:
    """Raise Conflict if the host has no agent."""
    if host.managed_by == models.IRONIC:
        raise errors.Conflict(
            f"{what} is of host {host.name}, which has no agent: nothing of it is given out, and "
            "only Ironic knows it."
        )


def take_over(session: orm.Session, host: models.Host, report: rpc.HostReport) -> None:
    """Make the locked host of a report its agent's, if only Ironic has known it so far.

    A device that is reported at the place where Ironic has one keeps its UUID; the others of
    Ironic are deleted. So is what Ironic knows of another host with the node of the report.
    """
    row = models.Host
    other = (row.node == report.node, row.id != host.id, row.managed_by == models.IRONIC)
    if host.last_seen_ms == 0 or host.node != report.node:
        forget(session, session.scalars(sa.select(row).where(*other).with_for_update()).all())
    if host.managed_by != models.IRONIC:
        return
    devices_of = report.devices.values()
    reported = {diff.path_key(each.control_path) for found in devices_of for each in found}
    gone = [
        device
        for device in devices(session, [host.id])
        if (device.control_path.cpid_type, device.control_path.cpid_info) not in reported
    ]
    delete_devices(session, gone)
    host.managed_by, host.node = models.AGENT, report.node
    db.after_commit(
        session, lambda: LOG.info("Host %s has an agent now, and is not Ironic's", report.host)
    )
