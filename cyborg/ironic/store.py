# SPDX-License-Identifier: Apache-2.0
"""Write what Ironic knows of a node: each node in one transaction.

The row of a host has the UUID of its node. A host that has an agent is left alone. A host without
devices has no row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exc
from sqlalchemy import orm

from cyborg import db
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory import bare_metal, diff
from cyborg.ironic.devices import NodeDevices
from cyborg.ironic.facts import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The outcome for a node: how many devices are new, changed, gone, and why none is written."""

    node: str
    host: str
    devices: int = 0
    new: int = 0
    changed: int = 0
    gone: int = 0
    unknown: int = 0
    #: The host has an agent, so there is nothing to import.
    has_agent: bool = False
    #: Why the node stays as it was.
    failure: str | None = None
    notes: tuple[str, ...] = ()


@db.retry
def store(node: Node, found: NodeDevices, *, dry_run: bool) -> Imported:
    """Bring the rows of a node in line with what Ironic knows of it."""
    try:
        with db.writer() as session:
            outcome = _write(session, node, found)
            session.flush()
            if dry_run:
                session.rollback()
                session.info.clear()
            return outcome
    except (db_exc.DBDuplicateEntry, db_exc.DBReferenceError, orm.exc.StaleDataError) as exc:
        # Another import, or an agent's first report, came between.
        raise db.RestartTransaction from exc


def _write(session: orm.Session, node: Node, found: NodeDevices) -> Imported:
    plain: dict[str, Any] = {
        "node": node.uuid,
        "host": node.host,
        "unknown": found.unknown,
        "notes": tuple(found.notes),
    }
    host = models.Host
    same = sa.or_(host.uuid == node.uuid, host.name == node.host, host.node == node.host)
    # Looking for them must not wait for hosts that are none of them and just report.
    ids = session.scalars(sa.select(host.id).where(same)).all()
    query = sa.select(host).where(host.id.in_(ids)).order_by(host.id)
    rows = list(session.scalars(query.with_for_update()))
    own = next((row for row in rows if row.uuid == node.uuid), None)
    if own is not None and own.managed_by == models.AGENT:
        return Imported(**plain, has_agent=True)
    for row in rows:
        if row is own:
            continue
        if row.managed_by == models.AGENT:
            gone = bare_metal.forget(session, [own]) if own is not None else 0
            return Imported(**plain, gone=gone, has_agent=True)
        failure = f"the node {row.uuid} is host {node.host} already"
        return Imported(**plain, failure=failure)
    if not found.devices:
        return Imported(**plain, gone=bare_metal.forget(session, [own] if own else []))
    if own is None:
        own = models.Host(uuid=node.uuid, managed_by=models.IRONIC, down=False)
        session.add(own)
    own.name = own.node = node.host
    own.not_offered = found.unknown
    session.flush()
    new, changed, gone = _write_devices(session, own.id, found.devices)
    return Imported(**plain, devices=len(found.devices), new=new, changed=changed, gone=gone)


def _write_devices(
    session: orm.Session, host_id: int, found: Mapping[str, tuple[str, base.Device]]
) -> tuple[int, int, int]:
    """The numbers of devices that are new, have changed, and are gone."""
    known = bare_metal.devices(session, [host_id])
    rows = {(row.control_path.cpid_type, row.control_path.cpid_info): row for row in known}
    new = changed = 0
    for driver, device in found.values():
        path = diff.path_key(device.control_path)
        row, values = rows.pop(path, None), _columns(driver, device)
        if row is None:
            new += 1
            session.add(_row(host_id, path, values))
        elif any(getattr(row, name) != value for name, value in values.items()):
            changed += 1
            for name, value in values.items():
                setattr(row, name, value)
    bare_metal.delete_devices(session, rows.values())
    return new, changed, len(rows)


def _row(host_id: int, path: tuple[str, str], values: Mapping[str, Any]) -> models.Device:
    cpid_type, cpid_info = path
    control_path = models.ControlPath(host_id=host_id, cpid_type=cpid_type, cpid_info=cpid_info)
    return models.Device(host_id=host_id, control_path=control_path, deployables=[], **values)


def _columns(driver: str, device: base.Device) -> dict[str, Any]:
    names = ("type", "vendor", "model", "std_board_info", "vendor_board_info")
    return {"driver": driver, **{name: getattr(device, name) for name in names}}


def known_hosts() -> dict[str, str]:
    """The names of the hosts that are known from Ironic alone, by the UUIDs of their nodes."""
    host = models.Host
    query = sa.select(host.uuid, host.name).where(host.managed_by == models.IRONIC)
    with db.reader() as session:
        return dict(list(session.execute(query)))


@db.retry
def forget(uuids: Collection[str], *, dry_run: bool) -> int:
    """Delete the hosts of these nodes that have no agent; the result counts their devices."""
    host = models.Host
    query = sa.select(host).where(host.uuid.in_(uuids), host.managed_by == models.IRONIC)
    try:
        with db.writer() as session:
            gone = bare_metal.forget(session, session.scalars(query.with_for_update()).all())
            if dry_run:
                session.rollback()
                session.info.clear()
            return gone
    except (db_exc.DBReferenceError, orm.exc.StaleDataError) as exc:
        raise db.RestartTransaction from exc
