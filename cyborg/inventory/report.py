# SPDX-License-Identifier: Apache-2.0
"""Host reports: what an agent sees becomes rows, by a pure diff that is applied in one transaction.

A report is the whole host. Reports of one host are ordered by (agent start, counter) and applied
one at a time; an unchanged one costs a single statement.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exc
from sqlalchemy import orm

from cyborg import db, notifications, rpc, work
from cyborg.db import models
from cyborg.inventory import changes, device_notices, missing, moved_handles
from cyborg.notifications import notices

LOG = logging.getLogger(__name__)

#: Milliseconds, longer than any message stays under way.
_OVERTAKEN = 300_000


#: What may become of a report.
APPLIED, UNCHANGED, OLD = "applied", "unchanged", "old"


def apply_report(report: rpc.HostReport) -> str:
    """Make the rows of the report's host say what the report says; old reports are dropped."""
    if _unchanged(report):
        return UNCHANGED
    return APPLIED if _apply(report) else OLD


@db.retry
def _unchanged(report: rpc.HostReport) -> bool:
    host = models.Host
    same = (host.name == report.host, host.report_digest == report.digest())
    with db.writer() as session:
        newer = (*same, _newer_than_stored(report))
        if db.update(session, host, *newer, host.down.is_(False), **_seen(report)):
            return True
        if db.update(session, host, *newer, **_seen(report)):
            _tell_up(session, report.host)
            return True
    return False


def _tell_up(session: orm.Session, host_name: str) -> None:
    """Tell that the host, which was down, is not when the caller's transaction commits."""
    query = sa.select(models.Host).where(models.Host.name == host_name)

    def told() -> Iterator[notices.Notice]:
        # Nobody reads it where there is nobody to tell.
        for host in session.scalars(query):
            yield notices.of_host(notices.HOST_UP, host)

    notifications.announce(session, told())
    db.after_commit(session, lambda: LOG.info("Host %s is up again", host_name))


def _is_old(host: models.Host, now_ms: int, report: rpc.HostReport) -> bool:
    """Whether a newer report was applied a short while ago.

    Messages are overtaken by seconds. Much later a report that seems old comes from a host whose
    clock was ahead once, and it must not be ignored until the clock gets there again.
    """
    if now_ms - host.last_seen_ms > _OVERTAKEN:
        return False
    return (host.report_started, host.report_counter) >= (report.started, report.counter)


def _newer_than_stored(report: rpc.HostReport) -> sa.ColumnElement[bool]:
    host = models.Host
    return sa.or_(
        host.report_started < report.started,
        sa.and_(
            host.report_started == report.started, host.report_counter < report.counter
        ),
    )


def _seen(report: rpc.HostReport) -> dict[str, object]:
    return {
        "last_seen_ms": db.now_ms(),
        "down": False,
        "report_started": report.started,
        "report_counter": report.counter,
    }


@db.retry
def _apply(report: rpc.HostReport) -> bool:
    with db.writer() as session:
        host, now_ms = _lock_host(session, report)
        if _is_old(host, now_ms, report):
            LOG.info("Dropped an old report of host %s", report.host)
            return False
        if _has_programs(report) or _had_programs(session, host.id):
            _lock_programs(session, host.id)
        known = _known_devices(session, host.id)
        # One that has found something may still have a sentence about what it left out.
        failed = report.errors.keys() - report.devices.keys()
        reported, moved = moved_handles.leave_out(known, report.devices, failed)
        before = moved_handles.ids(known)
        plan = changes.diff(known, reported, failed_drivers=failed)
        errors = dict(report.errors)
        plan = changes.without(plan, _taken_names(session, host, plan, errors))
        healths, known_news = plan.health_changes(), device_notices.of_known(plan)
        try:
            new = changes.apply(session, host.id, plan)
            work.want(session, work.PLACEMENT, [host.name])
            deleted = missing.discard(session, host.id)
            if moved_handles.is_doubled(session, host.id, moved, before):
                raise db.RestartTransaction
        except (
            db_exc.DBReferenceError,
            db_exc.DBDuplicateEntry,
            orm.exc.StaleDataError,
        ) as exc:
            # A handle that was free when we looked has been bound since, or one that was missing
            # and held has been released, and is gone.
            raise db.RestartTransaction from exc
        device_notices.tell(session, report.node, known_news, new=new, deleted=deleted)
        host.node = report.node
        host.driver_errors = errors
        # What could not be taken in must be tried with the next report, though it be the same.
        left_out = bool(moved) or errors != dict(report.errors) or changes.waits(plan)
        host.report_digest = None if left_out else report.digest()
        came_up, host.removed = host.down, False
        for name, value in _seen(report).items():
            setattr(host, name, value)
        if came_up:
            _tell_up(session, host.name)
    LOG.info("Applied report of host %s: %s", report.host, plan.summary())
    for path, reason in healths:
        # %r: a driver's words may hold what no log file can.
        now = "is healthy again" if reason is None else f"is unhealthy: {reason!r}"
        LOG.info("Device %s of host %s %s", path, report.host, now)
    return True


def _lock_host(session: orm.Session, report: rpc.HostReport) -> tuple[models.Host, int]:
    """The report's host, made if need be, and the database's clock."""
    row = {
        "uuid": models.new_uuid(),
        "name": report.host,
        "node": report.node,
        "report_started": 0,
        "report_counter": 0,
        "driver_errors": {},
        "created_at": models.utcnow(),
    }
    db.upsert(session, models.Host, [row], key=["name"], update={"name": report.host})
    query = sa.select(models.Host, db.now_ms()).where(models.Host.name == report.host)
    found = session.execute(query.with_for_update()).one()
    return found[0], found[1]


def _has_programs(report: rpc.HostReport) -> bool:
    devices = (device for found in report.devices.values() for device in found)
    return any(dep.program_mode for device in devices for dep in device.deployables)


def _had_programs(session: orm.Session, host_id: int) -> bool:
    return session.scalar(_programmable(host_id).limit(1)) is not None


def _lock_programs(session: orm.Session, host_id: int) -> None:
    """Let nobody bind to what is programmable until it is known what the hardware has lost."""
    deployable = models.Deployable
    query = _programmable(host_id).order_by(deployable.id)
    session.execute(query.with_for_update(of=deployable))


def _programmable(host_id: int) -> sa.Select[Any]:
    deployable = models.Deployable
    return (
        sa.select(deployable.id)
        .join(models.Device, models.Device.id == deployable.device_id)
        .where(models.Device.host_id == host_id, deployable.program_mode.is_not(None))
    )


def _known_devices(session: orm.Session, host_id: int) -> list[models.Device]:
    """The host's devices with everything below them, in five SELECTs however many there are."""
    device, deployable = models.Device, models.Deployable
    handles = orm.selectinload(device.deployables).selectinload(deployable.attach_handles)
    query = (
        sa.select(device)
        .where(device.host_id == host_id)
        .options(
            orm.joinedload(device.control_path),
            orm.selectinload(device.deployables).selectinload(deployable.attributes),
            handles.joinedload(models.AttachHandle.arq),
        )
        .order_by(device.id)
    )
    return list(session.scalars(query))


def _taken_names(
    session: orm.Session, host: models.Host, plan: changes.Plan, errors: dict[str, str]
) -> set[str]:
    """Names of new deployables that exist already; each is noted as its driver's error.

    They are another host's, or of a device of this one that is about to go: with an error noted
    the next report is read in full again, and then the name may be free.
    """
    new = plan.new_names()
    if not new:
        return set()
    query = (
        sa.select(models.Deployable.name, models.Host.name)
        .join(models.Device, models.Device.id == models.Deployable.device_id)
        .join(models.Host, models.Host.id == models.Device.host_id)
        .where(models.Deployable.name.in_(new))
    )
    taken: dict[str, str] = dict(list(session.execute(query)))
    for name, other in taken.items():
        sentence = f"deployable {name} is left out: host {other} has one of that name"
        LOG.error("Host %s: %s", host.name, sentence)
        errors[new[name]] = sentence
    return set(taken)
