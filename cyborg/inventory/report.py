# SPDX-License-Identifier: Apache-2.0
"""Host reports: each changes the host's rows in one transaction.

A report holds everything that the host has. Reports of one host are ordered by (agent start,
counter) and applied one at a time; one that says nothing new costs a single statement.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, history, liveness, notifications, rpc, work
from cyborg.common.reasons import Reason
from cyborg.db import models
from cyborg.inventory import acceptance, apply, bare_metal, diff, identities, losses, missing
from cyborg.notifications import notices
from cyborg.placement import names
from cyborg.rpc import lines

LOG = logging.getLogger(__name__)

#: What is shown with a host for a while.
_DROPPED = Reason.of(
    liveness.DROPPED,
    "a report was dropped, since a newer one is known",
    "it was late, or two agents report as this host",
)

#: Lines of the log about the health of a host's devices in a minute.
_HEALTHS_MAX = 100

#: The results of :func:`apply_report`, and of a digest that is not the stored one.
APPLIED, UNCHANGED, OLD, UNKNOWN = "applied", "unchanged", "old", "unknown"
REFUSED = "refused"

#: The keys of the handles that each deployable is reported with, by its name.
_Handles = Mapping[str, Set[tuple[str, str]]]


def read(data: Any, max_bytes: int) -> rpc.HostReport:
    """The report of a message.

    :raises ReportRefused: it is none, or has too many bytes; that is logged and shown with the host
    """
    try:
        acceptance.check_size(data, max_bytes)
        return rpc.HostReport.from_wire(data)
    except (acceptance.ReportRefused, rpc.Unreadable) as exc:
        refused = acceptance.ReportRefused(str(exc))
        _note(data.get("host") if isinstance(data, Mapping) else None, refused)
        raise refused from exc


def _note(host_name: object, refused: acceptance.ReportRefused) -> None:
    LOG.warning("Refused a report of host %.300r: %s", host_name, refused)
    if isinstance(host_name, str) and rpc.is_host_name(host_name):
        why = Reason.of(liveness.REFUSED, "a report was refused", refused)
        liveness.note_refusal(host_name, why)


def apply_report(
    report: rpc.HostReport,
    max_gone_share: float = 1.0,
    max_devices: int = 4096,
    keep_vanished: int = 0,
) -> str:
    """Bring the rows of the report's host in line with the report; an old report is dropped.

    If a larger share of the host's devices or attach handles than ``max_gone_share`` is missing
    from it, and was not from the one before, those devices stay as they are. Cards that have
    vanished stay as missing for ``keep_vanished`` seconds.

    :raises ReportRefused: the host may not say this of itself; that is logged and shown with the
        host
    """
    said = report.unchanged()
    if note_unchanged(said):
        return UNCHANGED
    try:
        accepted = acceptance.check_report(report, max_devices, names.made_for(report.host))
        applied = _apply(accepted, said.digest, max_gone_share, keep_vanished)
    except acceptance.ReportRefused as exc:
        _note(report.host, exc)
        if exc.owner is not None:
            sentence = f"host {report.host} claims the node of this one"
            liveness.note_refusal(exc.owner, Reason(liveness.REFUSED, sentence))
        raise
    if not applied:
        LOG.warning(
            "Dropped report %d of host %s, whose agent started at %d: a newer one is known",
            report.counter,
            report.host,
            report.started,
        )
    return APPLIED if applied else OLD


def note_unchanged(report: rpc.UnchangedReport) -> bool:
    """Take it as a sign of life if the stored report has the same content; whether it has."""
    return _note_of_host_up(report) or _note_of_host_down(report)


_TABLE = cast(sa.Table, models.Host.__table__)
_HOST = _TABLE.c
_STARTED: sa.BindParameter[int] = sa.bindparam("started", type_=sa.BigInteger())
_COUNTER: sa.BindParameter[int] = sa.bindparam("counter", type_=sa.BigInteger())
_READINGS: sa.BindParameter[Any] = sa.bindparam("readings", type_=_HOST.readings.type)
#: Made once, since making it takes longer than running it, and most reports are unchanged.
_NOTE = (
    sa.update(_TABLE)
    .where(
        _HOST.name == sa.bindparam("host"),
        _HOST.report_digest == sa.bindparam("digest"),
        acceptance.is_timely(_STARTED),
        # Newer than what is stored.
        sa.or_(
            _HOST.report_started < _STARTED,
            sa.and_(_HOST.report_started == _STARTED, _HOST.report_counter < _COUNTER),
        ),
    )
    .values(last_seen_ms=db.now_ms(), down=False, report_started=_STARTED, report_counter=_COUNTER)
    .values(readings=_READINGS)
)
_NOTE_UP = _NOTE.where(_HOST.down.is_(False))


def _given(report: rpc.UnchangedReport) -> dict[str, object]:
    return {
        "host": report.host,
        "digest": report.digest,
        "started": report.started,
        "counter": report.counter,
        "readings": report.readings or None,
    }


@db.retry
def _note_of_host_up(report: rpc.UnchangedReport) -> bool:
    return db.write(_NOTE_UP, _given(report)) > 0


@db.retry
def _note_of_host_down(report: rpc.UnchangedReport) -> bool:
    with db.writer() as session:
        if not db.matched(session, _NOTE, _given(report)):
            return False
        # Nothing of it was offered while it was down.
        work.want(session, work.PLACEMENT, [report.host])
        _announce_up(session, report.host)
        return True


def _announce_up(session: orm.Session, host_name: str) -> None:
    """Announce that a host is up again, when the caller's transaction commits."""
    query = sa.select(models.Host).where(models.Host.name == host_name)

    def up() -> Iterator[notices.Notice]:
        # A generator: the SELECT runs only if notifications are sent anywhere.
        for host in session.scalars(query):
            yield notices.of_host(notices.HOST_UP, host)

    notifications.announce(session, up())
    db.after_commit(session, lambda: LOG.info("Host %s is up again", host_name))


def _is_old(host: models.Host, now_ms: int, report: rpc.HostReport) -> bool:
    """A newer report was applied a short while ago.

    A report that looks old long after the last one comes from a host whose clock was set back: it
    is applied, or else the host would be ignored until its clock is where it was.
    """
    if now_ms - host.last_seen_ms > rpc.AGE_MAX:
        return False
    return (host.report_started, host.report_counter) >= (report.started, report.counter)


def _show_old(host: models.Host, now_ms: int, report: rpc.HostReport) -> None:
    """Show with the locked host that an older report was dropped; one that came twice is none."""
    if (host.report_started, host.report_counter) > (report.started, report.counter):
        liveness.show_refusal(host, now_ms, _DROPPED)


@db.retry
def _apply(report: rpc.HostReport, digest: str, max_share: float, keep_vanished: int) -> bool:
    with db.writer() as session:
        host, now_ms = _lock_host(session, report)
        acceptance.check_host(session, host, report, now_ms)
        host.node = host.node or report.node
        bare_metal.take_over(session, host, report)
        if _is_old(host, now_ms, report):
            _show_old(host, now_ms, report)
            return False
        if _has_programmable(report) or _had_programmable(session, host.id):
            _lock_programmable(session, host.id)
        known = _known_devices(session, host.id)
        errors, handles = dict(report.errors), diff.handle_keys(report.devices)
        plan, moved, lacked = _compare(host, known, report, handles, max_share, errors)
        plan = _without_refused(session, host, plan, errors)
        told, untold = history.health_to_tell(session, plan.ill())
        healths, events = plan.health_changes(), list(plan.events(told))
        _keep_vanished(plan, report, keep_vanished and now_ms + keep_vanished * 1000)
        new, deleted = _carry_out(session, host, plan, known, handles, moved)
        events = [*diff.events_of_new(new), *events]
        # missing.discard() has announced what it deleted.
        present = ((event, row) for event, row in events if row.id not in deleted)
        notifications.announce(
            session, (notices.of_device(event, row, report.node) for event, row in present)
        )
        host.driver_errors, host.lacked = errors, lacked
        # Without a digest the next report is applied in full, even if it says the same.
        incomplete = bool(moved or untold) or errors != dict(report.errors)
        incomplete |= apply.is_incomplete(plan)
        host.report_digest = None if incomplete else digest
        _note_host(session, host, report)
    LOG.info("Applied report of host %s: %s", report.host, plan.summary())
    _log_health_changes(report.host, healths)
    return True


def _compare(
    host: models.Host,
    known: list[models.Device],
    report: rpc.HostReport,
    handles: _Handles,
    max_share: float,
    errors: dict[str, str],
) -> tuple[diff.Plan, Set[str], str | None]:
    """The plan of a report, and the infos of handles that moved to another deployable.

    If too much is lacking, it is kept, that is added to the ``errors``, and its mark returned.
    """
    # A driver that has found devices may still have an error about one that it left out.
    failed = report.errors.keys() - report.devices.keys()
    frozen = diff.frozen_ids(known, failed, report.unknown)
    unread = diff.rows_with(known, report.unread)
    reported, moved = diff.drop_held_elsewhere(known, report.devices, frozen | unread)
    plan = diff.diff(known, reported, frozen=frozen, unread=unread)
    held = losses.deferred(known, plan, handles, max_share, host.lacked)
    if held:
        LOG.error("Host %s: %s", host.name, held.sentence)
        errors[liveness.CONDUCTOR] = held.sentence
        unread |= held.devices
        # A device that is kept is not given out at another place as well.
        reported, moved = diff.drop_held_elsewhere(known, report.devices, frozen | unread)
        plan = diff.diff(known, reported, frozen=frozen, unread=unread)
    return plan, moved, held.mark if held else None


def _carry_out(
    session: orm.Session,
    host: models.Host,
    plan: diff.Plan,
    known: list[models.Device],
    handles: _Handles,
    moved: Set[str],
) -> tuple[list[models.Device], frozenset[int]]:
    """Carry the plan out, and return the new devices, and the ids of those that are deleted."""
    rows = (row for device in known for row in device.deployables)
    before = {handle.id for row in rows for handle in row.attach_handles}
    # Since the rows were read, a free handle may be bound, or one that was missing and held may be
    # released and deleted.
    with db.restarting(orm.exc.StaleDataError):
        new = apply.apply(session, host.id, plan, known, handles)
        work.want(session, work.PLACEMENT, [host.name])
        deleted = missing.discard(session, host.id) if known else frozenset()
    if _is_held_at_old_place(session, host.id, moved, before):
        raise db.RestartTransaction
    return new, deleted


def _keep_vanished(plan: diff.Plan, report: rpc.HostReport, until_ms: int) -> None:
    """Keep the cards that have just left the bus, and are not merely reported no longer."""
    replaced = {row.id for row in plan.displaced()}
    for row in plan.gone if until_ms else ():
        place = identities.at_home(row.control_path.cpid_info)
        bus = f"{place.get('domain')}:{place.get('bus')} {row.vendor}"
        is_off = report.present and "bus" in place and bus not in report.present
        if not row.missing and row.driver in report.devices and (is_off or row.id in replaced):
            row.kept_until_ms = until_ms
            what = row.model, row.uuid, report.host
            LOG.warning("%s, device %s of host %s, has vanished; its record is kept", *what)


def _note_host(session: orm.Session, host: models.Host, report: rpc.HostReport) -> None:
    """Record what a report that is applied says of the host itself."""
    if host.node != report.node:
        history.rename_host(session, host.node, report.node)
    came_up = host.down
    host.node, host.not_offered, host.removed = report.node, report.not_offered, False
    host.not_offered_reasons = list(report.not_offered_reasons)
    host.readings = report.readings or None
    host.last_seen_ms, host.down = cast(int, db.now_ms()), False
    host.report_started, host.report_counter = report.started, report.counter
    if came_up:
        _announce_up(session, host.name)


def _log_health_changes(host_name: str, healths: Iterable[tuple[str, str | None]]) -> None:
    """Log what has changed; what is too much in this minute is told in the history only."""
    for path, reason in healths:
        if not lines.is_seldom(f"health on {host_name}", _HEALTHS_MAX):
            return
        if reason is None:
            LOG.info("Device %s of host %s is healthy again", path, host_name)
        else:
            # A driver's sentence may hold control characters.
            said = reason.encode("unicode_escape").decode()
            LOG.warning("Device %s of host %s is unhealthy: %s", path, host_name, said)


def _lock_host(session: orm.Session, report: rpc.HostReport) -> tuple[models.Host, int]:
    """The locked row of the report's host, made if there is none, and the database's clock."""
    if report.host != report.node:
        _name_imported(session, report)
    row = {
        "uuid": models.new_uuid(),
        "name": report.host,
        # None yet: that must be checked.
        "node": "",
        "report_started": 0,
        "report_counter": 0,
        "driver_errors": {},
        # What Placement has of a new host is read in full anyway.
        "audited_ms": db.now_ms(),
        "created_at": models.utcnow(),
    }
    db.upsert(session, models.Host, [row], key=["name"], update={"name": report.host})
    query = sa.select(models.Host, db.now_ms()).where(models.Host.name == report.host)
    found = session.execute(query.with_for_update()).one()
    return found[0], found[1]


def _name_imported(session: orm.Session, report: rpc.HostReport) -> None:
    """Give a host that was imported the name that its agent has: it had that of its node.

    The names of its deployables begin with the right one, if it has any: one that only Ironic
    knows has none.
    """
    host, deployable, device = models.Host, models.Deployable, models.Device
    own = deployable.name.startswith(f"{report.host}_", autoescape=True)
    own = sa.or_(own, host.managed_by == models.IRONIC)
    known = session.scalar(sa.select(host.id).where(host.name == report.host))
    on_node = (
        sa.select(host.id)
        .join(device, device.host_id == host.id)
        .outerjoin(deployable, deployable.device_id == device.id)
        .where(host.name == report.node, own)
        .limit(1)
    )
    id_ = session.scalar(on_node) if known is None else None
    if id_ is not None:
        never = (host.last_seen_ms == 0, host.report_started == 0)
        of_node = (host.name == report.node, host.node == report.node)
        db.update(session, host, host.id == id_, *of_node, *never, name=report.host)


def _has_programmable(report: rpc.HostReport) -> bool:
    devices = (device for found in report.devices.values() for device in found)
    return any(dep.program_mode for device in devices for dep in device.deployables)


def _had_programmable(session: orm.Session, host_id: int) -> bool:
    return session.scalar(_programmable(host_id).limit(1)) is not None


def _lock_programmable(session: orm.Session, host_id: int) -> None:
    """Keep binds off programmable deployables until the report has shown what they run."""
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
    """The host's devices and everything that belongs to them, from five SELECTs."""
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


def _without_refused(
    session: orm.Session, host: models.Host, plan: diff.Plan, errors: dict[str, str]
) -> diff.Plan:
    """The plan without new deployables that may not be there, each with an error of its driver.

    Because of the error the next report is applied in full.
    """
    for level, find in ((logging.WARNING, _unfinished), (logging.ERROR, _taken)):
        new, reasons = plan.new_names(), find(session, host, plan)
        for name, reason in reasons.items():
            errors[new[name]] = f"deployable {name} is left out: {reason}"
            LOG.log(level, "Host %s: %s", host.name, errors[new[name]])
        plan = diff.without(plan, reasons.keys())
    return plan


def _unfinished(_session: orm.Session, _host: models.Host, plan: diff.Plan) -> dict[str, str]:
    """New deployables that may be in the middle of a write, each with that reason.

    No operation is known that keeps them from being given out, as when their record was removed
    while they were written.
    """
    reason = "its device may be in the middle of a write"
    return dict.fromkeys(plan.new_names_being_written(), reason)


def _taken(session: orm.Session, host: models.Host, plan: diff.Plan) -> dict[str, str]:
    """New deployables whose name exists already, each with the reason.

    Another host has the name, or a device of this host that is about to be deleted. It may be free
    by the next report.
    """
    new = plan.new_names()
    if not new:
        return {}
    others = acceptance.names_of_others(session, host.name, set(new))
    # These are called otherwise when the plan is carried out.
    leaving = [row.id for row in (*plan.displaced(), *(kept.row for kept in plan.moved))]
    query = (
        sa.select(models.Deployable.name, models.Host.name)
        .join(models.Device, models.Device.id == models.Deployable.device_id)
        .join(models.Host, models.Host.id == models.Device.host_id)
        .where(models.Deployable.name.in_(new), models.Device.id.not_in(leaving))
    )
    taken = session.execute(query)
    return others | {name: f"host {other} has one of that name" for name, other in taken}


def _is_held_at_old_place(
    session: orm.Session, host_id: int, moved: Set[str], before: Set[int]
) -> bool:
    """A handle that moved to another deployable was bound at its old place meanwhile.

    ``moved`` are infos of handles. ``before`` are the ids of the handles that were there before
    this report: a driver may have a reason to report several of one info.
    """
    if not moved:
        return False
    handle, deployable, device = models.AttachHandle, models.Deployable, models.Device
    of_host = sa.select(deployable.id).join(device).where(device.host_id == host_id)
    other = orm.aliased(handle)
    same = (other.attach_type == handle.attach_type, other.attach_info == handle.attach_info)
    query = (
        sa.select(handle.id)
        .join(other, sa.and_(*same))
        .where(
            handle.missing.is_(True),
            handle.is_kept,
            handle.attach_info.in_(moved),
            other.missing.is_(False),
            other.id.not_in(before),
            handle.deployable_id.in_(of_host),
            other.deployable_id.in_(of_host),
        )
        .limit(1)
    )
    return session.scalar(query) is not None
