# SPDX-License-Identifier: Apache-2.0
"""Removal of the records of devices and hosts that are gone.

What a host reports cannot be removed: it would come back. Each function returns what was given up.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, history, host_keys, notifications, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import giving_up
from cyborg.handles.giving_up import GivenUp
from cyborg.hosts import draining
from cyborg.inventory import bare_metal, missing
from cyborg.notifications import notices
from cyborg.programming import operations, write_permits
from cyborg.states import handle_states

LOG = logging.getLogger(__name__)

_DEVICE, _DEPLOYABLE, _HANDLE = models.Device, models.Deployable, models.AttachHandle
_ARQ, _OPERATION = models.Arq, models.Operation


def _late_writes(
    session: orm.Session, host: models.Host, deployables: Collection[int]
) -> tuple[str, ...]:
    """Sentences on writes that cannot be stopped. One SELECT."""
    writing = draining.running(
        _DEPLOYABLE.id.in_(deployables), _OPERATION.state == operations.WRITING
    )
    query = writing.with_only_columns(_OPERATION.uuid, _DEPLOYABLE.name).order_by(_OPERATION.id)
    return tuple(
        f"Host {host.name} may be writing deployable {name} for operation {uuid}, or begin to "
        f"within {write_permits.TERM:g} seconds."
        for uuid, name in session.execute(query)
    )


@db.retry
def remove_device(uuid: str, *, force: bool = False, reason: str | None = None) -> GivenUp:
    """Remove the record of a device that its host does not show any more.

    ``force`` gives up the ARQs that are bound to it. The history keeps who has done it, and the
    ``reason``.

    :raises NotFound: there is no such device
    :raises Conflict: it would come back with the next report, ARQs are bound to it, or it is being
        programmed
    """
    with db.writer() as session:
        found = sa.select(_DEVICE.host_id).where(_DEVICE.uuid == uuid)
        host = _lock_host(session, models.Host.id.in_(found))
        row = session.scalar(sa.select(_DEVICE).where(_DEVICE.uuid == uuid))
        if host is None or row is None:
            raise errors.NotFound.of("Device", uuid=uuid)
        bare_metal.refuse(host, f"Device {uuid}")
        if not (host.down or row.missing):
            raise errors.Conflict(
                f"Device {uuid} is there, its host {host.name} reports it: it would come back. "
                "Take it out of the host, or keep the host's drivers from claiming it."
            )
        if not (force or host.down):
            _refuse_programmed(session, row)
        given_up = _give_up_devices(session, host, [row], force=force, reason=reason)
        _forget_digest(session, host)
    _log(f"device {uuid}", given_up, reason)
    return given_up


@db.retry
def remove_host(uuid: str, *, force: bool = False, reason: str | None = None) -> GivenUp:
    """Remove the record of a host that is down, with all its devices.

    The row itself follows when Placement has none of its providers any more. The keys of the host
    are revoked: if it comes back, it needs another one. ``force`` gives up
    the ARQs that are bound to its devices. The history keeps who has done it, and the ``reason``.

    :raises NotFound: there is no such host
    :raises Conflict: it is up, or ARQs are bound to its devices
    """
    record = models.ResourceProvider
    with db.writer() as session:
        host = _lock_host(session, models.Host.uuid == uuid)
        if host is None or host.removed or host.managed_by == models.IRONIC:
            _refuse_conductor(session, uuid)
            raise errors.NotFound.of("Service", uuid=uuid)
        if not host.down:
            raise errors.Conflict(
                f"Host {host.name} is up: it would come back with its next report. Stop its agent, "
                "and wait until the host is down."
            )
        devices = list(session.scalars(sa.select(_DEVICE).where(_DEVICE.host_id == host.id)))
        given_up = _give_up_devices(session, host, devices, force=force, reason=reason)
        history.write(session, [history.done(history.REMOVED, reason, hostname=host.node)])
        # Also providers whose devices are gone already, but not yet their allocations.
        known = session.scalars(sa.select(record.uuid).where(record.host_id == host.id))
        providers = tuple(sorted({*given_up.resource_providers, *known}))
        notifications.announce(session, [notices.of_host(notices.HOST_DELETED, host)])
        _forget_digest(session, host)
        host_keys.revoke_in(session, host.name)
        _end_service(session, host)
    given_up = replace(given_up, resource_providers=providers)
    _log(f"host {uuid}", given_up, reason)
    return given_up


def _log(what: str, given_up: GivenUp, reason: str | None) -> None:
    words = history.in_log(reason)
    LOG.warning("Removed %s for good (%s), with %s", what, words, given_up)


def _end_service(session: orm.Session, host: models.Host) -> None:
    """Mark a host removed, and nothing else: one that comes back is as good as new."""
    host.removed, host.drained, host.tainted = True, False, False
    host.drain_reason, host.drained_ms, host.taint_reason = None, None, None


def _lock_host(session: orm.Session, where: sa.ColumnElement[bool]) -> models.Host | None:
    """The host, locked: its reports wait until the transaction ends."""
    return session.scalar(sa.select(models.Host).where(where).with_for_update())


def _refuse_conductor(session: orm.Session, uuid: str) -> None:
    conductor = models.Conductor
    if session.scalar(sa.select(conductor.id).where(conductor.uuid == uuid)) is not None:
        raise errors.Conflict(
            f"Service {uuid} is a conductor: one that is stopped or dead is forgotten by itself."
        )


def _forget_digest(session: orm.Session, host: models.Host) -> None:
    """Have the host's next report read in full, and its leftovers in Placement removed."""
    host.report_digest = None
    work.want(session, work.PLACEMENT, [host.name])


def _give_up_devices(
    session: orm.Session,
    host: models.Host,
    devices: Sequence[models.Device],
    *,
    force: bool,
    reason: str | None,
) -> GivenUp:
    """Delete devices of the locked host with all below them, in a constant number of statements."""
    ids = [device.id for device in devices]
    query = sa.select(_DEPLOYABLE.id, _DEPLOYABLE.rp_uuid).where(_DEPLOYABLE.device_id.in_(ids))
    providers = dict(list(session.execute(query)))
    of_devices = sa.select(_HANDLE.id).where(_HANDLE.deployable_id.in_(providers))
    holders = sa.select(_ARQ).where(_ARQ.attach_handle_id.in_(of_devices)).order_by(_ARQ.id)
    arqs = list(session.scalars(holders.with_for_update()))
    if not force:
        _refuse_serving(arqs)
    left = handle_states.lock_left(session, _HANDLE.deployable_id.in_(providers))
    late_writes = _late_writes(session, host, providers)
    given_up = giving_up.give_up(session, arqs, left, reason, force=True)
    about = [{"hostname": host.node, "device_uuid": device.uuid} for device in devices]
    history.write(session, [history.done(history.REMOVED, reason, **each) for each in about])
    # An ARQ may get a handle, or an administrator add an attribute, after these were read.
    with db.restarting():
        _delete_rows(session, host, ids, providers)
    return replace(
        given_up,
        devices=tuple(device.uuid for device in devices),
        resource_providers=tuple(sorted(providers.values())),
        not_excluded=(*given_up.not_excluded, *late_writes),
    )


def _refuse_serving(arqs: Collection[models.Arq]) -> None:
    if arqs:
        named = ", ".join(f"{arq.uuid} (instance {arq.consumer_uuid})" for arq in arqs)
        raise errors.Conflict(
            f"There are ARQs that hold attach handles: {named}. Delete their instances first, or "
            "give force=true to give the ARQs up."
        )


def _refuse_programmed(session: orm.Session, device: models.Device) -> None:
    """Raise Conflict if the device is being programmed.

    A card that is being written may have left the bus, and comes back before that ends.
    """
    running = draining.running(models.Device.id == device.id)
    uuid = session.scalar(running.with_only_columns(models.Operation.uuid).limit(1))
    if uuid is not None:
        raise errors.Conflict(
            f"Device {device.uuid} is being programmed by operation {uuid}. Wait for its end, or "
            "give force=true."
        )


def _delete_rows(
    session: orm.Session, host: models.Host, devices: list[int], deployables: Collection[int]
) -> None:
    # Devices that went with the last ARQ that held them are announced already.
    left = session.scalars(sa.select(_DEVICE).where(_DEVICE.id.in_(devices)))
    gone = (notices.of_device(notices.DEVICE_DELETED, each, host.node) for each in left)
    notifications.announce(session, gone)
    db.delete(session, _HANDLE, _HANDLE.deployable_id.in_(deployables))
    missing.delete_deployables(session, deployables)
    db.delete(session, models.ControlPath, models.ControlPath.device_id.in_(devices))
    db.delete(session, _DEVICE, _DEVICE.id.in_(devices))
