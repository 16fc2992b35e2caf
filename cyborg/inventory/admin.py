# SPDX-License-Identifier: Apache-2.0
"""What administrators set: the status of devices, and attributes of deployables.

Each change requests the Placement sync of the host in its own transaction, and does not wait for
Placement.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exc
from sqlalchemy import orm

from cyborg import db, errors, notifications, work
from cyborg.db import models, paging
from cyborg.drivers import base
from cyborg.inventory import acceptance, attributes
from cyborg.notifications import notices

LOG = logging.getLogger(__name__)

ENABLED, MAINTAINING = models.ENABLED, models.MAINTAINING

_STATUS_EVENTS = {ENABLED: notices.DEVICE_ENABLED, MAINTAINING: notices.DEVICE_DISABLED}

#: Columns by which a list may be sorted and filtered; the names are those of the REST API.
COLUMNS: dict[str, Any] = {
    "id": models.Attribute.id,
    "uuid": models.Attribute.uuid,
    "deployable_id": models.Attribute.deployable_id,
    "deployable_uuid": models.Deployable.uuid,
    "key": models.Attribute.key,
    "created_at": models.Attribute.created_at,
    "updated_at": models.Attribute.updated_at,
}

_FILTERS = {**COLUMNS, "value": db.exactly(models.Attribute.value)}
_OPTIONS = (orm.contains_eager(models.Attribute.deployable),)
# With an inner join MariaDB would begin at the smaller table, and sort all rows to cut a page.
_ATTRIBUTES = sa.select(models.Attribute).outerjoin(models.Attribute.deployable)

_TRAIT = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")


def enable_device(uuid: str) -> None:
    """Put a device back into service; it may be enabled already.

    :raises NotFound: there is no such device
    """
    _set_device_status(uuid, ENABLED, None)
    LOG.info("Device %s is enabled", uuid)


def disable_device(uuid: str, reason: str | None = None) -> None:
    """Take a device out of service; it stays with its guests and is given to no new one.

    It may be disabled already; another reason takes the place of the one before.

    :raises NotFound: there is no such device
    """
    _set_device_status(uuid, MAINTAINING, reason)
    # %r: the reason may hold what no log file can.
    LOG.info("Device %s is disabled: %r", uuid, reason)


@db.retry
def _set_device_status(uuid: str, status: str, reason: str | None) -> None:
    device = models.Device
    other = device.status != status
    if reason is not None:
        other = sa.or_(other, device.disabled_reason.is_(None), device.disabled_reason != reason)
    with db.writer() as session:
        values = {"status": status, "disabled_reason": reason}
        changed = db.update(session, device, device.uuid == uuid, other, **values)
        found = session.execute(
            sa.select(models.Device, models.Host)
            .join(models.Host, models.Host.id == models.Device.host_id)
            .where(models.Device.uuid == uuid)
        ).one_or_none()
        if found is None:
            raise errors.NotFound.of("Device", uuid=uuid)
        row, host = found
        work.want(session, work.PLACEMENT, [host.name])
        if changed:
            event = _STATUS_EVENTS[status]
            notifications.announce(session, [notices.of_device(event, row, host.node)])


def list_attributes(page: paging.Page = paging.ALL, **wanted: str | int) -> list[models.Attribute]:
    """Attributes that have the values ``wanted``, with their deployables, from one SELECT.

    :raises Invalid: the sort key or the marker is unknown
    """
    with db.reader() as session:
        return paging.fetch(
            session, _ATTRIBUTES, COLUMNS, page, wanted, filters=_FILTERS, options=_OPTIONS
        )


def get_attribute(uuid: str) -> models.Attribute:
    """The attribute of that uuid with its deployable.

    :raises NotFound: there is no such attribute
    """
    with db.reader() as session:
        return paging.get(
            session, _ATTRIBUTES, COLUMNS, "Attribute", options=_OPTIONS, uuid=uuid
        )


def create_attribute(
    *,
    key: str,
    value: str,
    deployable_id: int | None = None,
    deployable_uuid: str | None = None,
    uuid: str | None = None,
) -> models.Attribute:
    """Add an attribute, which reports do not change, to a deployable named by its id or uuid.

    If the key begins with ``trait``, the value becomes a trait in Placement.

    :raises Invalid: the deployable does not exist, or the value is not a custom trait, or not of
        the type that the key has
    :raises Conflict: the deployable has an attribute of that key, or another has that uuid
    """
    if key.startswith(base.TRAIT_PREFIX) and not _TRAIT.fullmatch(value):
        raise errors.Invalid(
            f"value: {value[:255]} is no trait of one's own; begin with CUSTOM_ and use A-Z, 0-9 "
            "and _ only."
        )
    made = {
        "uuid": uuid or models.new_uuid(),
        "key": key,
        "value": attributes.stored(key, value),
        "origin": attributes.ADMIN,
    }
    if deployable_uuid is None:
        attribute = _create_attribute(models.Deployable.id == deployable_id, made)
    else:
        attribute = _create_attribute(models.Deployable.uuid == deployable_uuid, made)
    LOG.info("Deployable %s has attribute %s", attribute.deployable.uuid, key)
    return attribute


@db.retry
def _create_attribute(which: sa.ColumnElement[bool], made: dict[str, str]) -> models.Attribute:
    table = models.Attribute
    try:
        with db.writer() as session:
            deployable = session.scalar(sa.select(models.Deployable).where(which))
            if deployable is None:
                raise errors.Invalid(
                    "deployable_id or deployable_uuid: there is no such deployable."
                )
            same_key = sa.and_(table.deployable_id == deployable.id, table.key == made["key"])
            taken = sa.select(table.uuid).where(same_key | (table.uuid == made["uuid"]))
            for other in session.scalars(taken):
                raise _taken(other, made)
            attribute = models.Attribute(**made, deployable=deployable)
            session.add(attribute)
            work.want(session, work.PLACEMENT, session.scalars(_host_of(deployable.id)))
    except (db_exc.DBDuplicateEntry, db_exc.DBReferenceError) as exc:
        raise db.RestartTransaction from exc
    return attribute


def _taken(other: str, made: dict[str, str]) -> errors.Conflict:
    if other == made["uuid"]:
        return errors.Conflict(f"An attribute with uuid {other} already exists.")
    return errors.Conflict(
        f"The deployable has an attribute with key {made['key']} already; delete it first or "
        "choose another key."
    )


def delete_attribute(uuid: str) -> None:
    """Delete an attribute that an administrator added.

    :raises NotFound: there is no such attribute
    :raises Conflict: the device's driver reports it
    """
    _delete_attribute(uuid)
    LOG.info("Deleted attribute %s", uuid)


@db.retry
def _delete_attribute(uuid: str) -> None:
    with db.writer() as session:
        attribute = paging.get(
            session, sa.select(models.Attribute), COLUMNS, "Attribute", uuid=uuid
        )
        if attribute.origin != attributes.ADMIN:
            raise errors.Conflict(
                f"Attribute {uuid} is reported by the device's driver and would come back; only "
                "attributes made by an administrator can be deleted."
            )
        # The next report is applied in full: the driver may report an attribute of the same key.
        host_name = session.scalar(_host_of(attribute.deployable_id))
        db.update(session, models.Host, models.Host.name == host_name, report_digest=None)
        work.want(session, work.PLACEMENT, [host_name] if host_name else [])
        session.delete(attribute)


def _host_of(deployable_id: int) -> sa.Select[str]:
    return (
        sa.select(models.Host.name)
        .join(models.Device, models.Device.host_id == models.Host.id)
        .join(models.Deployable, models.Deployable.device_id == models.Device.id)
        .where(models.Deployable.id == deployable_id)
    )


@db.retry
def rename_host(old: str, new: str) -> None:
    """Keep the record of a host under the new name of its machine, with all that guests have.

    :raises Invalid: the new name is none
    :raises NotFound: there is no host of the old name
    :raises Conflict: it is up, or the new name has a record of its own
    """
    if not acceptance.is_host_name(new):
        raise errors.Invalid(f"{new!r} is no name of a host.")
    host = models.Host
    with db.writer() as session:
        found = session.scalar(sa.select(host).where(host.name == old).with_for_update())
        if found is None:
            raise errors.NotFound.of("Host", name=old)
        if not found.down:
            raise errors.Conflict(f"Host {old} is up; stop its agent, and wait until it is down.")
        if session.scalar(sa.select(host.id).where(host.name == new)) is not None:
            raise errors.Conflict(f"There is a record of host {new}; remove it first.")
        found.name, found.report_digest = new, None
        work.want(session, work.PLACEMENT, [new])
