# SPDX-License-Identifier: Apache-2.0
"""History: who had which attach handle from when to when, faults, failed binds, writes.

Each entry is written in the transaction of the change itself, and outlives what it is about. It is
deleted some time after its end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from oslo_config import cfg
from oslo_context import context as oslo_context
from sqlalchemy import orm

from cyborg import db
from cyborg.common.reasons import Reason, is_news
from cyborg.db import models, paging
from cyborg.drivers import base

#: The kinds of entries. An ARQ was Bound and had an attach handle:
USED = "used"
#: a bind failed, was refused, or was given up before its end:
BIND_FAILED = "bind_failed"
#: a deployable was programmed:
PROGRAMMED = "programmed"
#: and these are about a device as a whole.
UNHEALTHY = "unhealthy"
DISABLED = "disabled"
MISSING = "missing"
#: An attach handle could not be cleaned after use, and is kept from others meanwhile:
CLEAN_FAILED = "clean_failed"
#: its host has cleaned it, for the guest after the one that the entry names:
CLEANED = "cleaned"
#: A host was drained.
DRAINED = "drained"

#: A device, or a host as a whole, was kept from guests that did not tolerate it.
TAINTED = "tainted"
#: An administrator gave up what an ARQ had, without what its host was to do for it.
RELEASED = "released"
#: An administrator removed the record of a device, or of a host as a whole.
REMOVED = "removed"
#: Placement did not say what a consumer of ours holds; that is claimed again, or reserved.
CLAIM_LOST = "claim_lost"

OF_DEVICES = frozenset({UNHEALTHY, DISABLED, MISSING, TAINTED})
KINDS = (
    USED,
    BIND_FAILED,
    PROGRAMMED,
    UNHEALTHY,
    DISABLED,
    MISSING,
    DRAINED,
    CLEAN_FAILED,
    CLEANED,
    TAINTED,
    RELEASED,
    REMOVED,
    CLAIM_LOST,
)

#: Entries of binds that failed which a project may have of an hour before refusals are left out.
REFUSALS_MAX = 100
_HOUR_MS = 3_600_000
#: Faults of a device that are told in an hour: the health of a bad one may change in each report.
FAULTS_MAX = 10

#: What the owner may read of a handle that is not clean.
_NOT_CLEAN = "The accelerator of the instance could not be cleaned yet, and nobody gets it."

#: And of a device that is unhealthy.
_UNHEALTHY = "The device is unhealthy. Its guest may fail; the administrator of the cloud knows."

#: What is recorded if the administrator says nothing.
_NO_REASON = "No reason was given."

#: Entries that are deleted in one transaction.
_BATCH = 500

#: Name of the row that says until when entries had ended that are deleted, or were never here.
_FORGOTTEN = "history"

_ENTRY = models.HistoryEntry
_TABLE = cast(sa.Table, _ENTRY.__table__)
_NOW = db.now_ms()
_BLANK = {column.name: None for column in _TABLE.columns if column.nullable}

#: Columns by which a list may be sorted and narrowed; the names are those of the REST API.
COLUMNS = paging.columns(
    _ENTRY,
    *("id", "uuid", "kind", "device_uuid", "instance_uuid", "project_id", "arq_uuid"),
    *("started_at", "ended_at"),
    instance_uuid=_ENTRY.consumer_uuid,
    started_at=_ENTRY.started_ms,
    ended_at=_ENTRY.ended_ms,
)


#: Made once, since making it takes longer than running it.
_INSERT = sa.insert(_TABLE)


def write(session: orm.Session, entries: Sequence[Mapping[str, Any]]) -> None:
    """Add entries, each with ``kind`` and other columns by name; those not given are null.

    They start now, unless one says when. Entries of values alone, which have nothing that the
    database must look up, are written at less than half the cost.
    """
    known: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for entry in entries:
        row = {
            **_BLANK,
            "uuid": models.new_uuid(),
            "created_at": models.utcnow(),
            **entry,
        }
        row.setdefault("started_ms", _NOW)
        is_known = not any(isinstance(value, sa.ClauseElement) for value in row.values())
        (known if is_known else others).append(row)
    if known:
        session.execute(_INSERT, known[0] if len(known) == 1 else known)
    if others:
        # SQLAlchemy compiles an INSERT of several rows each time.
        session.execute(sa.insert(_TABLE).values(others[0] if len(others) == 1 else others))


def keep_refusals(
    session: orm.Session,
    project_id: str | None,
    reason: Reason,
    entries: Sequence[Mapping[str, Any]],
) -> None:
    """Add entries of binds of a project that were refused, or failed, for one reason.

    What is refused again within an hour for the same reason is no other entry, and of an hour only
    :data:`REFUSALS_MAX` are kept, so that nobody fills the table.
    """
    about = {"kind": BIND_FAILED, "project_id": project_id, **reason.columns("reason")}
    # One that names no consumer is about the project.
    consumers = [each.get("consumer_uuid") for each in entries]
    of_them = _ENTRY.consumer_uuid.in_(consumers)
    same = (
        of_them if all(consumers) else _ENTRY.consumer_uuid.is_(None),
        _ENTRY.reason.is_not_distinct_from(reason.public),
        _ENTRY.private_reason.is_not_distinct_from(reason.private),
    )
    # A project may have very many of the days before; these columns have an index.
    lately = (
        _ENTRY.kind == BIND_FAILED,
        _ENTRY.project_id == project_id,
        _ENTRY.ended_ms > db.now_ms() - _HOUR_MS,
    )
    if db.update(session, _ENTRY, *lately, *same, ended_ms=db.now_ms()):
        return
    found = sa.select(_ENTRY.id).where(*lately).limit(REFUSALS_MAX)
    kept = session.scalar(sa.select(sa.func.count()).select_from(found.subquery()))
    room = REFUSALS_MAX - (kept or 0)
    write(session, [{**each, **about, "ended_ms": db.now_ms()} for each in entries[:room]])


#: Made once, since making it takes longer than running it.
_END_USES = (
    sa.update(_TABLE)
    .where(
        _TABLE.c.arq_uuid.in_(sa.bindparam("arqs", expanding=True)),
        _TABLE.c.kind.in_([USED, UNHEALTHY]),
        _TABLE.c.ended_ms.is_(None),
    )
    .values(ended_ms=db.now_ms())
)


def end_uses(session: orm.Session, arq_uuids: Collection[str]) -> None:
    """The ARQs do not have their attach handles any more."""
    if arq_uuids:
        session.execute(_END_USES, {"arqs": list(arq_uuids)})


def end_of_devices(
    session: orm.Session, device_uuids: Collection[str], kinds: Collection[str]
) -> None:
    """End the entries of these kinds about the devices."""
    if device_uuids:
        _end(session, _ENTRY.device_uuid.in_(device_uuids), _ENTRY.kind.in_(kinds))


def health_to_tell(
    session: orm.Session, now: Mapping[str, str | None]
) -> tuple[set[str], set[str]]:
    """Of devices, those whose health is to be told now, and later, as it is another than told.

    ``now`` has what is wrong with each at present, if anything, by its uuid.
    """
    if not now:
        return set(), set()
    lately = _ENTRY.started_ms > db.now_ms() - _HOUR_MS
    is_open = _ENTRY.ended_ms.is_(None)
    about = (_ENTRY.device_uuid.in_(now), _ENTRY.kind == UNHEALTHY, _ENTRY.arq_uuid.is_(None))
    query = (
        sa.select(
            _ENTRY.device_uuid,
            sa.func.max(sa.case((is_open, _ENTRY.private_reason))),
            sa.func.sum(sa.case((lately, 1), else_=0)),
        )
        .where(*about, sa.or_(is_open, lately))
        .group_by(_ENTRY.device_uuid)
    )
    known = {uuid: (told, int(count)) for uuid, told, count in session.execute(query)}
    at_once, later = set[str](), set[str]()
    for uuid, reason in now.items():
        told, count = known.get(uuid, (None, 0))
        if is_news(told, reason):
            (at_once if reason is None or count < FAULTS_MAX else later).add(uuid)
    return at_once, later


def of_owners(session: orm.Session, ill: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """Entries for those who have handles of devices that are unhealthy, each for its reason."""
    arq, handle, device = models.Arq, models.AttachHandle, models.Device
    held = (
        sa.select(arq, handle.uuid, device.uuid)
        .join(handle, handle.id == arq.attach_handle_id)
        .join(models.Deployable, models.Deployable.id == handle.deployable_id)
        .join(device, device.id == models.Deployable.device_id)
        .where(device.uuid.in_(ill), arq.state == models.BOUND)
    )
    return [
        {
            "kind": UNHEALTHY,
            "device_uuid": device_uuid,
            "handle_uuid": handle_uuid,
            "resource_class": row.resource_class,
            "project_id": row.project_id,
            "consumer_uuid": row.consumer_uuid,
            "arq_uuid": row.uuid,
            "hostname": row.hostname,
            "reason": _UNHEALTHY,
            "private_reason": ill[device_uuid],
        }
        for row, handle_uuid, device_uuid in session.execute(held)
    ]


def note_unclean(
    session: orm.Session, arq: models.Arq, handle_uuid: str, device_uuid: str, reason: str
) -> None:
    """The handle that an ARQ had is not clean, for this reason; there is one such entry at most."""
    noted = _is_unclean({handle_uuid: arq.uuid})
    if db.update(session, _ENTRY, noted, private_reason=reason):
        return
    entry = {
        "kind": CLEAN_FAILED,
        "device_uuid": device_uuid,
        "handle_uuid": handle_uuid,
        "resource_class": class_of_handle(handle_uuid),
        "project_id": arq.project_id,
        "consumer_uuid": arq.consumer_uuid,
        "arq_uuid": arq.uuid,
        "reason": _NOT_CLEAN,
        "private_reason": reason,
    }
    write(session, [entry])


def _is_unclean(left: Mapping[str, str]) -> sa.ColumnElement[bool]:
    """An entry says that handles are not clean after ARQs, whose uuids are by those of handles."""
    # The ARQs have an index.
    after = (_ENTRY.arq_uuid.in_(set(left.values())), _ENTRY.handle_uuid.in_(left))
    return sa.and_(*after, _ENTRY.kind == CLEAN_FAILED, _ENTRY.ended_ms.is_(None))


def note_cleaned(session: orm.Session, arq: models.Arq, handle_uuid: str, device_uuid: str) -> None:
    """The host has cleaned the handle that an ARQ had."""
    entry = {
        "kind": CLEANED,
        "device_uuid": device_uuid,
        "handle_uuid": handle_uuid,
        "resource_class": class_of_handle(handle_uuid),
        "project_id": arq.project_id,
        "arq_uuid": arq.uuid,
        "ended_ms": db.now_ms(),
    }
    write(session, [entry])


def end_unclean(session: orm.Session, left: Mapping[str, str]) -> None:
    """Handles are clean after ARQs, or given up by an administrator; see :func:`_is_unclean`."""
    if left:
        after_them = _is_unclean(left)
        db.update(session, _ENTRY, after_them, ended_ms=db.now_ms(), actor=user())


def done(kind: str, words: str | None, **about: Any) -> dict[str, Any]:
    """An entry of what an administrator has done at once, and why, in the administrator's words."""
    return {
        "kind": kind,
        "private_reason": words or _NO_REASON,
        "actor": user(),
        "ended_ms": db.now_ms(),
        **about,
    }


def end_of_host(session: orm.Session, hostname: str, kinds: Collection[str]) -> None:
    """The host as a whole is not drained, or not tainted, any more, or for another reason."""
    _end(session, *_whole_host(hostname), _ENTRY.kind.in_(kinds))


def rename_host(session: orm.Session, old: str, new: str) -> None:
    """Give the entries that have not ended about a host as a whole its new name."""
    db.update(session, _ENTRY, *_whole_host(old), _ENTRY.ended_ms.is_(None), hostname=new)


def _whole_host(hostname: str) -> tuple[sa.ColumnElement[bool], ...]:
    about_it = _ENTRY.kind.in_({DRAINED, TAINTED})
    return (_ENTRY.hostname == hostname, _ENTRY.device_uuid.is_(None), about_it)


def _end(session: orm.Session, *where: sa.ColumnElement[bool]) -> None:
    db.update(session, _ENTRY, *where, _ENTRY.ended_ms.is_(None), ended_ms=db.now_ms())


def device_of_provider(rp_uuid: str | None) -> sa.ScalarSelect[str]:
    """The uuid of the device of a provider, for a column of an entry."""
    of_provider = models.Deployable.rp_uuid == rp_uuid
    return _device().where(of_provider).scalar_subquery()


def device_of_deployable(uuid: str) -> sa.ScalarSelect[str]:
    """The uuid of the device of a deployable, likewise."""
    return _device().where(models.Deployable.uuid == uuid).scalar_subquery()


def host_of_deployable(uuid: str) -> sa.ScalarSelect[str]:
    """The node of the host of a deployable, likewise."""
    host, device, deployable = models.Host, models.Device, models.Deployable
    query = sa.select(host.node).join(device, device.host_id == host.id)
    query = query.join(deployable, deployable.device_id == device.id)
    return query.where(deployable.uuid == uuid).scalar_subquery()


def project_of_instance(uuid: str | None) -> sa.ColumnElement[str] | None:
    """The project of an instance with ARQs, likewise, or of one that has had some."""
    if uuid is None:
        return None
    now, before = (
        sa.select(sa.func.max(table.project_id).label("id")).where(table.consumer_uuid == uuid)
        for table in (models.Arq, orm.aliased(_ENTRY))
    )
    # MySQL does not read the table that it inserts into, but for a table made of it before.
    made = sa.select(before.subquery().c.id)
    return sa.func.coalesce(now.scalar_subquery(), made.scalar_subquery())


def _device() -> sa.Select[str]:
    return sa.select(models.Device.uuid).join(
        models.Deployable, models.Deployable.device_id == models.Device.id
    )


def class_of_handle(uuid: str | None) -> sa.ScalarSelect[str]:
    """The resource class of an attach handle, likewise."""
    attribute, handle = models.Attribute, models.AttachHandle
    query = sa.select(attribute.value).join(handle, handle.deployable_id == attribute.deployable_id)
    wanted = (handle.uuid == uuid, attribute.key == base.RESOURCE_CLASS_KEY)
    return query.where(*wanted).scalar_subquery()


def in_log(reason: str | None) -> str:
    """The reason that somebody has given, which may hold what no line of a log can."""
    return "no reason given" if reason is None else repr(reason)


def user() -> str | None:
    """The user who is served by this thread, as an entry names it."""
    current = oslo_context.get_current()
    return f"user {current.user_id}" if current and current.user_id else None


def list_entries(
    scope: str | None, page: paging.Page = paging.ALL, **wanted: str
) -> list[models.HistoryEntry]:
    """Entries that have the values ``wanted``; if ``scope`` is a project, those of it only.

    :raises Invalid: the sort key or the marker is unknown
    """
    visible = sa.select(_ENTRY)
    if scope is not None:
        visible = visible.where(_ENTRY.project_id == scope)
    with db.reader() as session:
        return paging.fetch(session, visible, COLUMNS, page, wanted, options=_present())


def _present() -> list[Any]:
    """Have entries loaded with what is still known of their ARQs and handles."""
    arq, handle = models.Arq, models.AttachHandle
    name = sa.select(arq.device_profile_name).where(arq.uuid == _ENTRY.arq_uuid)
    info = sa.select(handle.attach_info).where(handle.uuid == _ENTRY.handle_uuid)
    return [
        orm.with_expression(_ENTRY.profile_name, name.scalar_subquery()),
        orm.with_expression(_ENTRY.attach_info, info.scalar_subquery()),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The usage of a resource class by a project."""

    project_id: str | None
    resource_class: str | None
    #: Accelerators that it has now, and the hours that it had them in the period.
    in_use: int
    hours: float


@db.retry
def sum_uses(
    project_id: str | None, start_ms: int | None = None, end_ms: int | None = None
) -> list[Usage]:
    """Usage by project and class, of one project if it is given; one SELECT.

    The period is that of the history, up to now, unless ``start_ms`` and ``end_ms`` limit it.
    """
    now = db.now_ms()
    running = _ENTRY.ended_ms.is_(None)
    began: sa.ColumnElement[int] = _ENTRY.started_ms.expression
    ended: sa.ColumnElement[int] = sa.func.coalesce(_ENTRY.ended_ms, now)
    if start_ms is not None:
        began = sa.case((began < start_ms, start_ms), else_=began)
    if end_ms is not None:
        ended = sa.case((ended > end_ms, end_ms), else_=ended)
    within = sa.case((ended > began, ended - began), else_=0)
    columns = (_ENTRY.project_id, _ENTRY.resource_class)
    query = (
        sa.select(*columns, sa.func.sum(sa.case((running, 1), else_=0)), sa.func.sum(within))
        .where(_ENTRY.kind == USED)
        .group_by(*columns)
        .order_by(*columns)
    )
    if start_ms is not None:
        query = query.where(sa.or_(running, _ENTRY.ended_ms > start_ms))
    if project_id is not None:
        query = query.where(_ENTRY.project_id == project_id)
    return [
        Usage(
            project_id=project,
            resource_class=name,
            in_use=int(in_use),
            hours=round(int(used_ms) / 3_600_000, 3),
        )
        for project, name, in_use, used_ms in db.rows(query)
    ]


@db.retry
def known_since(conf: cfg.ConfigOpts) -> int | None:
    """Since when nothing is forgotten that has ended, in milliseconds; None if nothing ever is."""
    seconds, row = conf.conductor.history_expiry, models.Brake
    # What was deleted stays so when the option is raised.
    deleted = sa.select(row.began_ms).where(row.name == _FORGOTTEN).scalar_subquery()
    ((until_ms, now_ms),) = db.rows(sa.select(deleted, db.now_ms()))
    expired_ms = now_ms - seconds * 1000 if seconds else None
    return max((ms for ms in (until_ms, expired_ms) if ms is not None), default=None)


def note_forgotten(session: orm.Session, until_ms: int | sa.ColumnElement[int]) -> None:
    """Of what ended until then some is not known, or not any more."""
    row = models.Brake
    new = {"name": _FORGOTTEN, "began_ms": until_ms, "used": 0, "created_at": models.utcnow()}
    later = sa.case((row.began_ms < until_ms, until_ms), else_=row.began_ms)
    db.upsert(session, row, [new], key=["name"], update={"began_ms": later})


def forget(conf: cfg.ConfigOpts) -> None:
    """Delete some of the entries that ended ``[conductor] history_expiry`` seconds ago."""
    seconds = conf.conductor.history_expiry
    if seconds:
        old = _ENTRY.ended_ms < db.now_ms() - seconds * 1000
        db.change_due(_ENTRY, old, limit=_BATCH, change=_delete)


def _delete(session: orm.Session, ended: list[models.HistoryEntry]) -> None:
    note_forgotten(session, max(entry.ended_ms or 0 for entry in ended))
    db.delete(session, _ENTRY, _ENTRY.id.in_([entry.id for entry in ended]))
