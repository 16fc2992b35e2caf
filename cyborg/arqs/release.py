# SPDX-License-Identifier: Apache-2.0
"""Releasing attach handles: unbind, delete, and the end of cleaning.

A handle that needs no host step is free in the transaction that releases it. One that does stays
attached to its ARQ, and so cannot be given out, until the step is done.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import arq_states, db, errors, history, notifications, work
from cyborg.context import RequestContext
from cyborg.db import models
from cyborg.inventory import missing
from cyborg.notifications import notices

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    """An attach handle that an ARQ holds, and what its release needs."""

    id: int
    uuid: str
    type: str
    missing: bool
    device_uuid: str
    prepares: bool
    cleans: bool
    blank_image: str | None
    in_doubt: bool
    host_id: int
    host_name: str


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
        models.Arq.consumer_nqn,
        models.Arq.updated_at,
    )
)


def _lockable(*which: sa.ColumnElement[bool]) -> dict[bool, sa.Select[models.Arq]]:
    """ARQs to be locked, by whether only those of one project are."""
    query = sa.select(models.Arq).where(*which, models.Arq.state != models.DELETING)
    query = query.options(*_NOT_ASKED).order_by(models.Arq.id).with_for_update()
    of_project = models.Arq.project_id == sa.bindparam("project")
    return {False: query, True: query.where(of_project)}


#: These are made once, since making them takes longer than running them.
_LOCK = _lockable(models.Arq.uuid.in_(sa.bindparam("uuids", expanding=True)))
_LOCK_OF_INSTANCE = _lockable(models.Arq.instance_uuid == sa.bindparam("instance"))
_DELETE = sa.delete(cast(sa.Table, models.Arq.__table__)).where(
    models.Arq.__table__.c.id.in_(sa.bindparam("ids", expanding=True))
)


def _given(ctx: RequestContext, **values: Any) -> dict[str, Any]:
    """The values of such a statement."""
    return values if ctx.project_scope is None else {**values, "project": ctx.project_scope}


def refuse_unknown(uuids: Collection[str]) -> None:
    """Return if ``uuids`` is empty.

    :raises NotFound: it is not
    """
    if uuids:
        raise errors.NotFound.of("ExtArq", uuid=", ".join(sorted(uuids)))


def delete_arqs(ctx: RequestContext, uuids: Collection[str]) -> None:
    """Delete ARQs; those that exist are deleted even if others are unknown.

    :raises Forbidden: an ARQ belongs to an instance and there is no service token
    :raises NotFound: some of them do not exist, or not for this caller
    """
    found = _delete_by_uuid(ctx, uuids)
    refuse_unknown(set(uuids) - found)


@db.retry
def _delete_by_uuid(ctx: RequestContext, uuids: Collection[str]) -> set[str]:
    with db.writer() as session:
        arqs = lock_arqs(session, ctx, uuids)
        for arq in arqs.values():
            if arq.instance_uuid and not ctx.has_service_token:
                raise errors.Forbidden(
                    f"ARQ {arq.uuid} is bound to instance {arq.instance_uuid}. Use the Compute "
                    "API to delete the instance; deleting its ARQ requires a service token."
                )
        delete(session, list(arqs.values()))
        return set(arqs)


def delete_instance_arqs(ctx: RequestContext, instance_uuid: str) -> None:
    """Delete every ARQ of an instance, if it has any.

    :raises Forbidden: there is no service token
    """
    if not ctx.has_service_token:
        raise errors.Forbidden("Deleting the ARQs of an instance requires a service token.")
    _delete_by_instance(ctx, instance_uuid)


@db.retry
def _delete_by_instance(ctx: RequestContext, instance_uuid: str) -> None:
    with db.writer() as session:
        query = _LOCK_OF_INSTANCE[ctx.project_scope is not None]
        delete(session, list(session.scalars(query, _given(ctx, instance=instance_uuid))))


#: Of an ARQ that has no handle any more.
_NO_HANDLE = {
    "attach_handle_id": None,
    "left_ms": None,
    "needs_write": False,
    "access_key": None,
}
_NO_BINDING = {
    "state_reason": None,
    "hostname": None,
    "device_rp_uuid": None,
    "instance_uuid": None,
    "bind_started_ms": None,
}


def delete(session: orm.Session, arqs: Sequence[models.Arq]) -> None:
    """Delete locked ARQs; one whose handle needs a host step is Deleting, and hidden, till then."""
    held = _held(session, arqs)
    _want_events_of_others(session, arqs)
    stepped = _begin_steps(session, arqs, held)
    plain = [arq.id for arq in arqs if arq.id not in stepped]
    if stepped:
        where = models.Arq.id.in_(stepped)
        gone = {"instance_uuid": None, "allocation_uuid": None}
        arq_states.enter(session, models.DELETING, where, **gone)
    if plain:
        db.matched(session, _DELETE, {"ids": plain})
    _announce(session, notices.ARQ_DELETED, arqs, models.DELETING, held)
    _discard_missing(session, [handle for id_, handle in held.items() if id_ not in stepped])
    for arq in arqs:
        LOG.info("ARQ %s is %s", arq.uuid, "Deleting" if arq.id in stepped else "deleted")


def unbind(session: orm.Session, arqs: Sequence[models.Arq]) -> None:
    """Make locked ARQs Unbound; a handle that needs a host step stays attached until it is done."""
    held = _held(session, arqs)
    _want_events_of_others(session, arqs)
    stepped = _begin_steps(session, arqs, held)
    plain = [arq.id for arq in arqs if arq.id not in stepped]
    if stepped:
        arq_states.enter(session, models.UNBOUND, models.Arq.id.in_(stepped), **_NO_BINDING)
    if plain:
        where = models.Arq.id.in_(plain)
        arq_states.enter(session, models.UNBOUND, where, **_NO_BINDING, **_NO_HANDLE)
    changed = [arq for arq in arqs if arq.state != models.UNBOUND]
    _announce(session, notices.ARQ_UNBOUND, changed, models.UNBOUND, held)
    _discard_missing(session, [handle for id_, handle in held.items() if id_ not in stepped])
    for arq in arqs:
        LOG.info("ARQ %s is Unbound", arq.uuid)


def _want_events_of_others(session: orm.Session, leaving: Collection[models.Arq]) -> None:
    """Have the remaining ARQs of an instance sent to Nova, if they waited for one that leaves it.

    Nothing is sent while one of an instance's ARQs is BindStarted, see :mod:`.nova_events`. An
    allocation that loses one gives back the others.
    """
    arq_states.want_telling(session, [arq for arq in leaving if arq.allocation_uuid])
    instances = {
        arq.instance_uuid
        for arq in leaving
        if arq.state == models.BIND_STARTED and arq.instance_uuid and not arq.allocation_uuid
    }
    if instances:
        query = sa.select(models.Arq.instance_uuid).where(
            models.Arq.instance_uuid.in_(instances),
            models.Arq.id.not_in([arq.id for arq in leaving]),
        )
        others = session.scalars(query.distinct())
        work.want(session, work.NOVA_EVENT, [instance for instance in others if instance])


def _announce(
    session: orm.Session,
    event: notices.Event,
    arqs: Iterable[models.Arq],
    state: str,
    held: Mapping[int, _Held],
) -> None:
    def handle_of(arq: models.Arq) -> notices.Handle | None:
        found = held.get(arq.id)
        return notices.Handle(found.uuid, found.type, found.device_uuid) if found else None

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
        _deployables.c.in_doubt,
        _hosts.c.id,
        _hosts.c.name,
    )
    .select_from(_handles)
    .join(_deployables, _deployables.c.id == _handles.c.deployable_id)
    .join(_devices, _devices.c.id == _deployables.c.device_id)
    .join(_hosts, _hosts.c.id == _devices.c.host_id)
    .where(_THESE)
)


def _held(session: orm.Session, arqs: Iterable[models.Arq]) -> dict[int, _Held]:
    """The handles of ``arqs`` by ARQ id, locked: a report that misses one waits for the caller."""
    handle_ids = {arq.attach_handle_id: arq.id for arq in arqs if arq.attach_handle_id}
    if not handle_ids:
        return {}
    which = {"ids": list(handle_ids)}
    locked: dict[int, Any] = {row.id: row for row in session.execute(_LOCK_HANDLES, which)}
    facts: Any = session.execute(_FACTS_OF_HANDLES, which)
    return {handle_ids[fact[0]]: _Held(*locked[fact[0]], *fact[1:]) for fact in facts}


def _begin_steps(
    session: orm.Session, arqs: Iterable[models.Arq], held: dict[int, _Held]
) -> set[int]:
    """Want the host steps that releasing ``arqs`` takes; return the ids of the ARQs that wait."""
    waiting = {arq.id: held[arq.id] for arq in arqs if _needs_step(arq, held.get(arq.id))}
    used = [arq.id for arq in arqs if arq.state == models.BOUND]
    left = [arq_id for arq_id in used if arq_id in waiting and waiting[arq_id].blank_image]
    if left:
        db.update(session, models.Arq, models.Arq.id.in_(left), left_ms=db.now_ms())
    served = [arq.id for arq in arqs if arq.id in used and arq.needs_write]
    if served := [arq_id for arq_id in served if not held[arq_id].in_doubt]:
        # A conductor of the release before has ended the write, or made it Bound.
        db.update(session, models.Arq, models.Arq.id.in_(served), needs_write=False)
    work.want(session, work.HOST_STEP, {handle.uuid for handle in waiting.values()})
    # Placement must not offer handles that are dirty from now on, and those that were reserved
    # because nobody claimed them are free.
    changed = {arq.id for arq in arqs if arq.allocation_missed_ms is not None} | waiting.keys()
    work.want(session, work.PLACEMENT, {held[id_].host_name for id_ in changed & held.keys()})
    return set(waiting)


def _needs_step(arq: models.Arq, handle: _Held | None) -> bool:
    """Whether the handle must be cleaned first, or may be being prepared at present."""
    if handle is None:
        return False
    waits = arq.state not in models.SERVING
    is_left = handle.blank_image and arq.state == models.BOUND
    being_prepared = handle.prepares and arq.state == models.BIND_STARTED
    return bool(waits or handle.cleans or is_left or being_prepared)


def _discard_missing(session: orm.Session, released: Iterable[_Held]) -> None:
    gone = {handle.host_id: handle.host_name for handle in released if handle.missing}
    # First, because the lock on these rows serialises the callers of discard().
    work.want(session, work.PLACEMENT, gone.values())
    for host_id in sorted(gone):
        missing.discard(session, host_id)


def force(session: orm.Session, arqs: Sequence[models.Arq]) -> None:
    """Free the handles of locked ARQs without the host steps that they wait for.

    ARQs that are BindStarted, Bound or Deleting are deleted; the others keep their state.
    """
    held = _held(session, arqs)
    deleted = [arq for arq in arqs if arq.state in models.SERVING | {models.DELETING}]
    kept = [arq.id for arq in arqs if arq not in deleted]
    if deleted:
        db.matched(session, _DELETE, {"ids": [arq.id for arq in deleted]})
    if kept:
        where = models.Arq.id.in_(kept)
        db.update(session, models.Arq, where, **_NO_HANDLE)
    history.end_unclean(session, [arq.uuid for arq in arqs])
    _announce(session, notices.ARQ_RELEASED, deleted, models.DELETING, held)
    for arq in arqs:
        if arq.id in kept:
            _announce(session, notices.ARQ_RELEASED, [arq], arq.state, held)
    visible = [arq for arq in deleted if arq.state != models.DELETING]
    _announce(session, notices.ARQ_DELETED, visible, models.DELETING, held)
    _want_events_of_others(session, visible)
    _discard_missing(session, held.values())
    work.want(session, work.PLACEMENT, {handle.host_name for handle in held.values()})


def finish_cleaning(session: orm.Session, arq: models.Arq) -> None:
    """Release the locked ARQ's handle after its host step: delete the ARQ or detach the handle."""
    held = _held(session, [arq])
    if arq.state == models.DELETING:
        db.matched(session, _DELETE, {"ids": [arq.id]})
    else:
        where = models.Arq.id == arq.id
        db.update(session, models.Arq, where, **_NO_HANDLE)
    history.end_unclean(session, [arq.uuid])
    _discard_missing(session, held.values())
    work.want(session, work.PLACEMENT, {handle.host_name for handle in held.values()})
    LOG.info("ARQ %s has released its attach handle (%s)", arq.uuid, arq.state)
