# SPDX-License-Identifier: Apache-2.0
"""Forced removal: host steps that never end, records of devices and hosts that are gone.

What a host reports cannot be removed: it would come back. Each function returns what was given up.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exc
from sqlalchemy import orm

from cyborg import db, history, host_keys, notifications, work
from cyborg.arqs import service
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import release
from cyborg.inventory import bare_metal, missing
from cyborg.notifications import notices
from cyborg.policy.context import RequestContext
from cyborg.programming import operations, permits
from cyborg.states import handle_states

LOG = logging.getLogger(__name__)

#: What the owner of an ARQ may read of its forced release.
_GIVEN_UP = "An administrator gave up the accelerator request."

#: What is recorded if the administrator says nothing.
_NO_REASON = "No reason was given."


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUpArq:
    """An ARQ as it was, and what will not be done for it any more."""

    uuid: str
    state: str
    project_id: str | None
    instance_uuid: str | None
    hostname: str | None
    device_rp_uuid: str | None
    attach_handle_uuid: str | None
    #: ``prepare``, ``clean``, or None if no step was due.
    host_step: str | None
    #: Why the step failed so far, if it was tried.
    last_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """What was removed."""

    arqs: tuple[GivenUpArq, ...]
    #: Uuids of devices, and of their resource providers, which leave Placement when they can.
    devices: tuple[str, ...] = ()
    resource_providers: tuple[str, ...] = ()
    #: Sentences about what a host may still do that was asked before.
    not_excluded: tuple[str, ...] = ()

    def __str__(self) -> str:
        arqs = [f"{arq.uuid} ({arq.state}, instance {arq.instance_uuid})" for arq in self.arqs]
        parts = {
            "ARQs": arqs,
            "devices": self.devices,
            "resource providers": self.resource_providers,
        }
        said = "; ".join(f"{name} {', '.join(each)}" for name, each in parts.items() if each)
        return " ".join([f"{said or 'nothing'}.", *self.not_excluded])


def release_arq(
    ctx: RequestContext, uuid: str, *, force: bool, reason: str | None = None
) -> GivenUp:
    """Free the handle of the caller's ARQ without the host step that it waits for.

    ``force`` does so even if the host is up, or the ARQ is Bound. The history keeps who has done
    it, and the ``reason``.

    Of an ARQ that was bound again, what it has left before is given up first.

    :raises NotFound: there is none, or it is another project's
    :raises Conflict: it has no handle and has left none; or, without ``force``, its host may still
        do the step or an instance may use its device
    """
    given_up = _release_arq(ctx, uuid, force=force, reason=reason)
    LOG.warning("Gave up the host steps of ARQ %s (%s): %s", uuid, history.in_log(reason), given_up)
    return given_up


@db.retry
def _release_arq(ctx: RequestContext, uuid: str, *, force: bool, reason: str | None) -> GivenUp:
    query = sa.select(models.Arq).where(models.Arq.uuid == uuid, *service.in_scope(ctx))
    handle = models.AttachHandle
    ours = () if ctx.project_scope is None else (handle.left_project == ctx.project_scope,)
    with db.writer() as session:
        arq = session.scalar(query.with_for_update())
        left = handle_states.lock_left(session, handle.left_arq == uuid, *ours)
        if arq is None and not left:
            raise errors.NotFound.of("ExtArq", uuid=uuid)
        arqs = [arq] if arq is not None and not left else []
        held = [*(each.id for each in left), *(each.attach_handle_id for each in arqs)]
        # What it has left may be on several hosts: if one is up, it is asked for all of that.
        host = session.scalar(_host_of(held))
        facts = _facts(session, arqs, left)
        for fact in facts[:1]:
            _refuse_release(fact, host, force=force)
        given_up = GivenUp(arqs=facts, not_excluded=_late_steps(host, facts))
        history.write(session, [_chronicle(fact, reason) for fact in facts])
        release.give_up(session, left) if left else release.force(session, arqs)
    return given_up


def _chronicle(given_up: GivenUpArq, reason: str | None) -> dict[str, Any]:
    """The entry of the history for an ARQ that is given up."""
    handle = given_up.attach_handle_uuid
    return {
        "kind": history.RELEASED,
        "device_uuid": history.device_of_provider(given_up.device_rp_uuid),
        "handle_uuid": handle,
        "resource_class": None if handle is None else history.class_of_handle(handle),
        "project_id": given_up.project_id,
        "instance_uuid": given_up.instance_uuid,
        "arq_uuid": given_up.uuid,
        "hostname": given_up.hostname,
        "reason": _GIVEN_UP,
        "private_reason": reason or _NO_REASON,
        "actor": history.user(),
        "ended_ms": db.now_ms(),
    }


def _removed(host: models.Host, reason: str | None, **about: str) -> dict[str, Any]:
    """The entry for a host that is removed, or for what ``about`` names of it."""
    return {
        "kind": history.REMOVED,
        "hostname": host.node,
        "private_reason": reason or _NO_REASON,
        "actor": history.user(),
        "ended_ms": db.now_ms(),
        **about,
    }


def _refuse_release(fact: GivenUpArq, host: models.Host | None, *, force: bool) -> None:
    what = f"ARQ {fact.uuid} is {fact.state}"
    if host is None and fact.state != models.BIND_STARTED:
        raise errors.Conflict(f"{what} without an attach handle; delete it.")
    if not force and fact.state == models.BOUND and fact.instance_uuid:
        reports = "though its host does not report" if host and host.down else "and its host is up"
        raise errors.Conflict(
            f"{what}: instance {fact.instance_uuid} may still run with its device, {reports}. Give "
            "force=true if that instance is gone."
        )
    if not force and (host is None or not host.down):
        raise errors.Conflict(
            f"{what}, and its host is not known to be down: what is to be done there may yet be "
            "done. Give force=true to go without that."
        )


def _host_of(handle_ids: Collection[int | None]) -> sa.Select[models.Host]:
    return (
        sa.select(models.Host)
        .join(models.Device, models.Device.host_id == models.Host.id)
        .join(models.Device.deployables)
        .join(models.Deployable.attach_handles)
        .where(models.AttachHandle.id.in_(handle_ids))
        .order_by(models.Host.down)
        .limit(1)
    )


def _facts(
    session: orm.Session,
    arqs: Sequence[models.Arq],
    left: Sequence[models.AttachHandle],
) -> tuple[GivenUpArq, ...]:
    """What is about to be given up: ``arqs``, and handles that were left. Two SELECTs."""
    handle, deployable, step = models.AttachHandle, models.Deployable, models.Work
    ids = [*(arq.attach_handle_id for arq in arqs), *(each.id for each in left)]
    query = (
        sa.select(handle, deployable, step.last_error)
        .join(deployable, deployable.id == handle.deployable_id)
        .outerjoin(step, sa.and_(step.kind == work.HOST_STEP, step.key == handle.uuid))
        .where(handle.id.in_(ids))
    )
    facts: dict[int, Any] = {row[0].id: row for row in session.execute(query)}
    were = handle_states.leavers(session, left)
    return (
        *(_fact(arq, facts.get(arq.attach_handle_id or 0)) for arq in arqs),
        *(_fact(arq, facts[id_]) for id_, arq in were.items()),
    )


_NOTHING: Any = (None, None, None)


def _fact(arq: models.Arq, held: Any) -> GivenUpArq:
    handle, deployable, last_error = held or _NOTHING
    step = None
    if handle is not None and (deployable.clean_erases or not handle.missing):
        if deployable.prepares and arq.state == models.BIND_STARTED and not handle.is_left:
            step = "prepare"
        elif deployable.cleans or handle.is_to_overwrite:
            step = "clean"
    return GivenUpArq(
        uuid=arq.uuid,
        state=arq.state,
        project_id=arq.project_id,
        instance_uuid=None if handle is not None and handle.is_left else arq.instance_uuid,
        hostname=arq.hostname,
        device_rp_uuid=arq.device_rp_uuid,
        attach_handle_uuid=handle.uuid if handle is not None else None,
        host_step=step,
        last_error=last_error,
    )


def _late_steps(host: models.Host | None, given_up: Iterable[GivenUpArq]) -> tuple[str, ...]:
    """What may become of steps whose messages cannot be called back."""
    return tuple(
        f"Host {host.name} may still {arq.host_step} attach handle {arq.attach_handle_uuid}, if "
        "it was asked before."
        for arq in given_up
        if host is not None and arq.host_step is not None
    )


def _late_writes(
    session: orm.Session, host: models.Host, deployables: Collection[int]
) -> tuple[str, ...]:
    """What may become of writes that cannot be stopped. One SELECT."""
    operation, deployable = models.Operation, models.Deployable
    query = (
        sa.select(operation.uuid, deployable.name)
        .join(deployable, deployable.uuid == operation.active)
        .where(deployable.id.in_(deployables), operation.state == operations.WRITING)
        .order_by(operation.id)
    )
    return tuple(
        f"Host {host.name} may be writing deployable {name} for operation {uuid}, or begin to "
        f"within {permits.TERM:g} seconds."
        for uuid, name in session.execute(query)
    )


def remove_device(uuid: str, *, force: bool, reason: str | None = None) -> GivenUp:
    """Remove the record of a device that its host does not show any more.

    ``force`` gives up the ARQs that are bound to it. The history keeps who has done it, and the
    ``reason``.

    :raises NotFound: there is no such device
    :raises Conflict: it would come back with the next report, ARQs are bound to it, or it is being
        programmed
    """
    given_up = _remove_device(uuid, force=force, reason=reason)
    LOG.warning("Removed device %s for good (%s), with %s", uuid, history.in_log(reason), given_up)
    return given_up


@db.retry
def _remove_device(uuid: str, *, force: bool, reason: str | None) -> GivenUp:
    device = models.Device
    with db.writer() as session:
        found = sa.select(device.host_id).where(device.uuid == uuid)
        host = _lock_host(session, models.Host.id.in_(found))
        row = session.scalar(sa.select(device).where(device.uuid == uuid))
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
    return given_up


def remove_host(uuid: str, *, force: bool, reason: str | None = None) -> GivenUp:
    """Remove the record of a host that is down, with all its devices.

    The row itself follows when Placement has none of its providers any more. The keys of the host
    are revoked: if it comes back, it needs another one. ``force`` gives up
    the ARQs that are bound to its devices. The history keeps who has done it, and the ``reason``.

    :raises NotFound: there is no such host
    :raises Conflict: it is up, or ARQs are bound to its devices
    """
    given_up = _remove_host(uuid, force=force, reason=reason)
    LOG.warning("Removed host %s for good (%s), with %s", uuid, history.in_log(reason), given_up)
    return given_up


@db.retry
def _remove_host(uuid: str, *, force: bool, reason: str | None) -> GivenUp:
    device, record = models.Device, models.ResourceProvider
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
        devices = list(session.scalars(sa.select(device).where(device.host_id == host.id)))
        given_up = _give_up_devices(session, host, devices, force=force, reason=reason)
        history.write(session, [_removed(host, reason)])
        # Also providers whose devices are gone already, but not yet their allocations.
        known = session.scalars(sa.select(record.uuid).where(record.host_id == host.id))
        providers = tuple(sorted({*given_up.resource_providers, *known}))
        notifications.announce(session, [notices.of_host(notices.HOST_DELETED, host)])
        _forget_digest(session, host)
        host_keys.revoke_in(session, host.name)
        _end_service(session, host)
    return replace(given_up, resource_providers=providers)


def _end_service(session: orm.Session, host: models.Host) -> None:
    """Mark a host removed, and nothing else: one that comes back is as good as new."""
    history.end_of_host(session, host.node, history.DRAINED, history.TAINTED)
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
    deployable, handle, arq = models.Deployable, models.AttachHandle, models.Arq
    ids = [device.id for device in devices]
    query = sa.select(deployable.id, deployable.rp_uuid).where(deployable.device_id.in_(ids))
    providers = dict(list(session.execute(query)))
    of_devices = sa.select(handle.id).where(handle.deployable_id.in_(providers))
    holders = sa.select(arq).where(arq.attach_handle_id.in_(of_devices)).order_by(arq.id)
    arqs = list(session.scalars(holders.with_for_update()))
    if not force:
        _refuse_serving(arqs)
    left = handle_states.lock_left(session, handle.deployable_id.in_(providers))
    facts = _facts(session, arqs, left)
    given_up = GivenUp(
        arqs=facts,
        devices=tuple(device.uuid for device in devices),
        resource_providers=tuple(sorted(providers.values())),
        not_excluded=(*_late_steps(host, facts), *_late_writes(session, host, providers)),
    )
    entries = [_chronicle(fact, reason) for fact in facts]
    entries += [_removed(host, reason, device_uuid=device.uuid) for device in devices]
    history.write(session, entries)
    release.force(session, arqs)
    release.give_up(session, left)
    try:
        _delete_rows(session, host, ids, providers)
    except db_exc.DBReferenceError as exc:
        # An ARQ got a handle, or an administrator added an attribute, after these were read.
        raise db.RestartTransaction from exc
    return given_up


def _refuse_serving(arqs: Collection[models.Arq]) -> None:
    if arqs:
        named = ", ".join(f"{arq.uuid} (instance {arq.instance_uuid})" for arq in arqs)
        raise errors.Conflict(
            f"There are ARQs that hold attach handles: {named}. Delete their instances first, or "
            "give force=true to give the ARQs up."
        )


def _refuse_programmed(session: orm.Session, device: models.Device) -> None:
    """A card that is being written may have left the bus, and comes back before that ends.

    :raises Conflict: the device is being programmed
    """
    operation, deployable = models.Operation, models.Deployable
    query = (
        sa.select(operation.uuid)
        .join(deployable, deployable.uuid == operation.active)
        .where(deployable.device_id == device.id)
        .limit(1)
    )
    uuid = session.scalar(query)
    if uuid is not None:
        raise errors.Conflict(
            f"Device {device.uuid} is being programmed by operation {uuid}. Wait for its end, or "
            "give force=true."
        )


def _delete_rows(
    session: orm.Session, host: models.Host, devices: list[int], deployables: Collection[int]
) -> None:
    left = sa.select(models.Device).where(models.Device.id.in_(devices))

    def deleted() -> Iterator[notices.Notice]:
        # Devices that went with the last ARQ that held them are announced already.
        for device in session.scalars(left):
            yield notices.of_device(notices.DEVICE_DELETED, device, host.node)

    notifications.announce(session, deleted())
    handle = models.AttachHandle
    db.delete(session, handle, handle.deployable_id.in_(deployables))
    missing.delete_deployables(session, deployables)
    db.delete(session, models.ControlPath, models.ControlPath.device_id.in_(devices))
    db.delete(session, models.Device, models.Device.id.in_(devices))
