# SPDX-License-Identifier: Apache-2.0
"""Releasing attach handles: unbind, delete, and the end of cleaning.

A handle that needs no host step is free in the transaction that releases it. One that does is left,
see :mod:`cyborg.states.handle_states`, and so cannot be given out, until the step is done.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, history, notifications, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.inventory import missing
from cyborg.notifications import notices
from cyborg.policy.context import RequestContext
from cyborg.states import arq_states, handle_states

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _LeftHandle:
    """An attach handle that an ARQ holds or has left, and what its release needs."""

    id: int
    uuid: str
    type: str
    missing: bool
    device_uuid: str
    prepares: bool
    cleans: bool
    blank_image: str | None
    host_id: int
    host_name: str

    @property
    def shown(self) -> notices.Handle:
        """As notifications show it."""
        return notices.Handle(self.uuid, self.type, self.device_uuid)


def lock_arqs(
    session: orm.Session, ctx: RequestContext, uuids: Collection[str]
) -> dict[str, models.Arq]:
    """The caller's ARQs among ``uuids``, locked until the transaction ends, by uuid."""
    found = session.scalars(_LOCK[ctx.project_scope is not None], _given(ctx, uuids=list(uuids)))
    return {arq.uuid: arq for arq in found}


#: What nobody asks of a locked ARQ; reading it took longer than everything else of small queries.
_NOT_ASKED = tuple(
    orm.defer(column, raiseload=True)
    for column in (
        models.Arq.device_profile_uuid,
        models.Arq.resource_class,
        models.Arq.bind_started_ms,
        models.Arq.instance_asked_ms,
        models.Arq.instance_missed_ms,
        models.Arq.updated_at,
    )
)


def _lockable(*which: sa.ColumnElement[bool]) -> dict[bool, sa.Select[models.Arq]]:
    """ARQs to be locked, by whether only those of one project are."""
    query = sa.select(models.Arq).where(*which)
    query = query.options(*_NOT_ASKED).order_by(models.Arq.id).with_for_update()
    of_project = models.Arq.project_id == sa.bindparam("project")
    return {False: query, True: query.where(of_project)}


#: These are made once, since making them takes longer than running them.
_LOCK = _lockable(models.Arq.uuid.in_(sa.bindparam("uuids", expanding=True)))
_LOCK_OF_INSTANCE = _lockable(models.Arq.consumer_uuid == sa.bindparam("instance"))


def _given(ctx: RequestContext, **values: Any) -> dict[str, Any]:
    """The values of such a statement."""
    return values if ctx.project_scope is None else {**values, "project": ctx.project_scope}


def refuse_unknown(uuids: Collection[str]) -> None:
    """Return if ``uuids`` is empty.

    :raises NotFound: it is not
    """
    if uuids:
        raise errors.NotFound.of("ExtArq", uuid=", ".join(sorted(uuids)))


@db.retry
def delete_arqs(ctx: RequestContext, uuids: Collection[str]) -> None:
    """Delete ARQs; those that exist are deleted even if others are unknown.

    :raises Forbidden: an ARQ belongs to an instance and there is no service token
    :raises NotFound: some of them do not exist, or not for this caller
    """
    with db.writer() as session:
        arqs = lock_arqs(session, ctx, uuids)
        for arq in arqs.values():
            if arq.consumer_uuid and not ctx.has_service_token:
                raise errors.Forbidden(
                    f"ARQ {arq.uuid} is bound to instance {arq.consumer_uuid}. Use the Compute "
                    "API to delete the instance; deleting its ARQ requires a service token."
                )
        delete(session, list(arqs.values()))
    refuse_unknown(set(uuids) - arqs.keys())


@db.retry
def delete_instance_arqs(ctx: RequestContext, instance_uuid: str) -> None:
    """Delete every ARQ of an instance, if it has any.

    :raises Forbidden: there is no service token
    """
    if not ctx.has_service_token:
        raise errors.Forbidden("Deleting the ARQs of an instance requires a service token.")
    with db.writer() as session:
        query = _LOCK_OF_INSTANCE[ctx.project_scope is not None]
        delete(session, list(session.scalars(query, _given(ctx, instance=instance_uuid))))


_NO_BINDING = {
    "attach_handle_id": None,
    "needs_write": False,
    "access_key": None,
    "state_reason": None,
    "private_reason": None,
    "hostname": None,
    "device_rp_uuid": None,
    "consumer_uuid": None,
    "bind_started_ms": None,
}


def delete(session: orm.Session, arqs: Sequence[models.Arq]) -> None:
    """Delete locked ARQs; a handle that needs a host step is left till that is done."""
    if not arqs:
        return
    held, kept = _leave(session, arqs)
    arq_states.delete(session, arqs)
    _announce(session, notices.ARQ_DELETED, arqs, models.DELETING, held)
    _discard_missing(session, [handle for id_, handle in held.items() if id_ not in kept])
    for arq in arqs:
        LOG.info("ARQ %s is %s", arq.uuid, "Deleting" if arq.id in kept else "deleted")


def unbind(session: orm.Session, arqs: Sequence[models.Arq]) -> None:
    """Make locked ARQs Unbound; a handle that needs a host step is left till that is done."""
    if not arqs:
        return
    held, kept = _leave(session, arqs)
    where = models.Arq.id.in_([arq.id for arq in arqs])
    arq_states.enter(session, models.UNBOUND, where, **_NO_BINDING)
    changed = [arq for arq in arqs if arq.state != models.UNBOUND]
    _announce(session, notices.ARQ_UNBOUND, changed, models.UNBOUND, held)
    _discard_missing(session, [handle for id_, handle in held.items() if id_ not in kept])
    for arq in arqs:
        LOG.info("ARQ %s is Unbound", arq.uuid)


def _leave(
    session: orm.Session, arqs: Sequence[models.Arq]
) -> tuple[dict[int, _LeftHandle], set[int]]:
    """Have ARQs that go leave their handles; returns these by ARQ id, and which need a step."""
    held = _held(session, arqs)
    _want_events_of_others(session, arqs)
    return held, _begin_steps(session, arqs, held)


def _want_events_of_others(session: orm.Session, leaving: Collection[models.Arq]) -> None:
    """Have the remaining ARQs of an instance sent to Nova, if they waited for one that leaves it.

    Nothing is sent while one of an instance's ARQs is BindStarted, see :mod:`.nova_events`. An
    allocation that loses one gives back the others.
    """
    arq_states.want_telling(session, [arq for arq in leaving if arq.allocation_uuid])
    instances = {
        arq.consumer_uuid
        for arq in leaving
        if arq.state == models.BIND_STARTED and arq.consumer_uuid and not arq.allocation_uuid
    }
    if instances:
        query = sa.select(models.Arq.consumer_uuid).where(
            models.Arq.consumer_uuid.in_(instances),
            models.Arq.id.not_in([arq.id for arq in leaving]),
        )
        others = session.scalars(query.distinct())
        work.want(session, work.NOVA_EVENT, [instance for instance in others if instance])


def _announce(
    session: orm.Session,
    event: notices.NoticeKind,
    arqs: Iterable[models.Arq],
    state: str,
    held: Mapping[int, _LeftHandle],
) -> None:
    def handle_of(arq: models.Arq) -> notices.Handle | None:
        found = held.get(arq.id)
        return found.shown if found else None

    notifications.announce(
        session, (notices.of_arq(event, arq, state, handle=handle_of(arq)) for arq in arqs)
    )


_handles, _deployables = models.AttachHandle.__table__, models.Deployable.__table__
_devices, _hosts = models.Device.__table__, models.Host.__table__
_THESE = _handles.c.id.in_(sa.bindparam("ids", expanding=True))
#: Made once, since making them takes as long as running them.
_LOCK_HANDLES = (
    sa.select(_handles.c.id, _handles.c.uuid, _handles.c.attach_type, _handles.c.missing)
    .where(_THESE)
    .order_by(_handles.c.id)
    .with_for_update()
)
_FACTS_OF_HANDLES = (
    sa.select(
        _handles.c.id,
        _devices.c.uuid,
        _deployables.c.prepares,
        _deployables.c.cleans,
        _deployables.c.blank_image,
        _hosts.c.id,
        _hosts.c.name,
    )
    .select_from(_handles)
    .join(_deployables, _deployables.c.id == _handles.c.deployable_id)
    .join(_devices, _devices.c.id == _deployables.c.device_id)
    .join(_hosts, _hosts.c.id == _devices.c.host_id)
    .where(_THESE)
)


def _held(session: orm.Session, arqs: Iterable[models.Arq]) -> dict[int, _LeftHandle]:
    """The handles of ``arqs`` by ARQ id, locked: a report that misses one waits for the caller."""
    handle_ids = {arq.attach_handle_id: arq.id for arq in arqs if arq.attach_handle_id}
    return {handle_ids[id_]: held for id_, held in _facts(session, handle_ids).items()}


def _facts(session: orm.Session, handle_ids: Collection[int]) -> dict[int, _LeftHandle]:
    """The handles by their ids, locked."""
    if not handle_ids:
        return {}
    which = {"ids": list(handle_ids)}
    locked: dict[int, Any] = {row.id: row for row in session.execute(_LOCK_HANDLES, which)}
    facts: Any = session.execute(_FACTS_OF_HANDLES, which)
    return {fact[0]: _LeftHandle(*locked[fact[0]], *fact[1:]) for fact in facts}


def _begin_steps(
    session: orm.Session, arqs: Iterable[models.Arq], held: Mapping[int, _LeftHandle]
) -> set[int]:
    """Want the host steps that releasing ``arqs`` takes; return the ids of the ARQs with one."""
    leaving = []
    for arq in arqs:
        handle = held.get(arq.id)
        if handle is not None and (event := _why_left(arq, handle)) is not None:
            leaving.append(handle_states.Leaving(handle.id, arq, event))
    handle_states.leave(session, leaving)
    kept = {each.arq.id for each in leaving}
    work.want(session, work.HOST_STEP, {held[id_].uuid for id_ in kept})
    # Placement must not offer handles that are dirty from now on, and those that were reserved
    # because nobody claimed them are free.
    changed = {arq.id for arq in arqs if arq.allocation_missed_ms is not None} | kept
    work.want(session, work.PLACEMENT, {held[id_].host_name for id_ in changed & held.keys()})
    return kept


def _why_left(arq: models.Arq, handle: _LeftHandle) -> handle_states.Event | None:
    """Whether the handle must be cleaned first, or may be being prepared at present."""
    if arq.state == models.BOUND and handle.blank_image:
        return handle_states.Event.LEFT_WRITTEN
    being_prepared = handle.prepares and arq.state == models.BIND_STARTED
    return handle_states.Event.LEFT if handle.cleans or being_prepared else None


def _discard_missing(session: orm.Session, released: Iterable[_LeftHandle]) -> None:
    gone = {handle.host_id: handle.host_name for handle in released if handle.missing}
    # First, because the lock on these rows serialises the callers of discard().
    work.want(session, work.PLACEMENT, gone.values())
    for host_id in sorted(gone):
        missing.discard(session, host_id)


def force(session: orm.Session, arqs: Sequence[models.Arq]) -> None:
    """Delete locked ARQs that are BindStarted or Bound, without what their host is to do."""
    if not arqs:
        return
    held = _held(session, arqs)
    arq_states.delete(session, arqs)
    _announce(session, notices.ARQ_RELEASED, arqs, models.DELETING, held)
    _announce(session, notices.ARQ_DELETED, arqs, models.DELETING, held)
    _want_events_of_others(session, arqs)
    _discard_missing(session, held.values())
    work.want(session, work.PLACEMENT, {handle.host_name for handle in held.values()})


def give_up(session: orm.Session, handles: Sequence[models.AttachHandle]) -> None:
    """Give out locked handles that were left, without the host steps that they wait for."""
    if not handles:
        return
    arqs = handle_states.leavers(session, handles)
    facts = _end(session, handle_states.Event.GIVEN_UP, handles)
    notifications.announce(
        session,
        (
            notices.of_arq(notices.ARQ_RELEASED, arq, arq.state, handle=facts[id_].shown)
            for id_, arq in arqs.items()
        ),
    )


def finish_cleaning(
    session: orm.Session, handle: models.AttachHandle, cleaned_after: models.Arq | None
) -> None:
    """A locked handle that was left is clean: its host has cleaned it, or nothing was to clean."""
    LOG.info("Attach handle %s is clean after ARQ %s", handle.uuid, handle.left_arq)
    _end(session, handle_states.Event.CLEANED, [handle], cleaned_after)


def _end(
    session: orm.Session,
    event: handle_states.Event,
    handles: Sequence[models.AttachHandle],
    cleaned_after: models.Arq | None = None,
) -> dict[int, _LeftHandle]:
    """Make locked handles clean; returns them by their ids."""
    facts = _facts(session, [handle.id for handle in handles])
    if cleaned_after is not None:
        for each in facts.values():
            history.note_cleaned(session, cleaned_after, each.uuid, each.device_uuid)
    history.end_unclean(session, {handle.uuid: handle.left_arq or "" for handle in handles})
    handle_states.change(session, event, models.AttachHandle.id.in_(facts))
    _discard_missing(session, facts.values())
    work.want(session, work.PLACEMENT, {handle.host_name for handle in facts.values()})
    return facts
