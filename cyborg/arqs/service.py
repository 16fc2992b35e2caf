# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests as consumers see them: create, get and list."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, notifications, profiles, quotas
from cyborg.common import errors
from cyborg.common.reasons import shown
from cyborg.db import models, paging
from cyborg.function_pools import misses
from cyborg.inventory import query
from cyborg.notifications import notices
from cyborg.policy.context import RequestContext
from cyborg.states import arq_states, availability, handle_states

LOG = logging.getLogger(__name__)

_ARQ, _HANDLE = models.Arq.__table__.c, models.AttachHandle.__table__.c

#: Columns by which a list may be sorted and narrowed; the names are those of the REST API.
COLUMNS = paging.columns(
    _ARQ,
    *("id", "uuid", "state", "device_profile_name", "hostname", "device_rp_uuid"),
    *("instance_uuid", "project_id", "created_at", "updated_at"),
    instance_uuid=_ARQ.consumer_uuid,
)


class Shown(NamedTuple):
    """What is shown of an ARQ; a mapped object would take twice the time, in lists above all."""

    uuid: str
    state: str
    project_id: str | None
    device_profile_name: str
    device_profile_group_id: int
    created_at: datetime.datetime
    updated_at: datetime.datetime | None = None
    state_reason: str | None = None
    private_reason: str | None = None
    hostname: str | None = None
    device_rp_uuid: str | None = None
    consumer_uuid: str | None = None
    #: Its attach handle, if it has one.
    handle_uuid: str | None = None
    attach_type: str | None = None
    attach_info: str | None = None


_COLUMNS = dict(_ARQ.items()) | {
    "handle_uuid": _HANDLE.uuid,
    "attach_type": _HANDLE.attach_type,
    "attach_info": _HANDLE.attach_info,
}
_SHOWN = (
    sa.select(*(_COLUMNS[name] for name in Shown._fields))
    .select_from(models.Arq.__table__)
    .outerjoin(models.AttachHandle.__table__, _HANDLE.id == _ARQ.attach_handle_id)
)

#: What begins with _ is made once, since making it takes longer than running it.
_INSERT = sa.insert(cast(sa.Table, models.Arq.__table__)).values(
    device_profile_group=sa.bindparam("group")
)
#: The ARQs of an instance, by whether those of one project only.
_OF_INSTANCE = {
    scoped: _SHOWN.where(
        _ARQ.consumer_uuid == sa.bindparam("instance"),
        *((_ARQ.project_id == sa.bindparam("project"),) if scoped else ()),
    )
    .order_by(_ARQ.id)
    .limit(sa.bindparam("limit", type_=sa.Integer()))
    for scoped in (False, True)
}
#: How many ARQs a project has without an accelerator, as far as that matters.
_EMPTY = sa.select(sa.func.count()).select_from(
    sa.select(_ARQ.id)
    .where(
        _ARQ.project_id == sa.bindparam("project"),
        _ARQ.attach_handle_id.is_(None),
    )
    .limit(sa.bindparam("most", type_=sa.Integer()))
    .subquery()
)

#: Seconds between two polls of a request that waits for binds: at first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


def create(
    ctx: RequestContext,
    profile_name: str,
    limits: quotas.Limits | None = None,
    *,
    most: int = 0,
) -> list[Shown]:
    """Make the ARQs of a device profile for the caller's project, in the order of its groups.

    :raises NotFound: the caller may use no profile of that name
    :raises Conflict: the profile is disabled
    :raises QuotaExceeded: the project would have more than ``limits``
    :raises Forbidden: the project would have more than ``most`` ARQs without an accelerator
    """
    with quotas.announcing():
        created = _create(ctx, profile_name, limits, most)
    uuids = ", ".join(arq.uuid for arq in created)
    LOG.info("Created ARQs %s of profile %s", uuids, profile_name)
    return created


@db.retry
def _create(
    ctx: RequestContext, profile_name: str, limits: quotas.Limits | None, most: int
) -> list[Shown]:
    with db.writer() as session:
        profile = profiles.find_by_name(session, ctx, profile_name)
        profiles.refuse_disabled(profile)
        groups = [
            NewArq(profile.name, profile.uuid, *each)
            for each in profiles.count_requests(profile.groups)
        ]
        refuse_more(session, ctx.project_id, len(groups), most)
        created = insert(session, ctx.project_id, groups, limits or {})
        misses.note_shortage(session, profile.groups, ctx.project_id)
    return created


class NewArq(NamedTuple):
    """An ARQ to be made: its profile, and the index, the group and the class in that."""

    profile_name: str
    profile_uuid: str | None
    group_id: int
    group: dict[str, str]
    resource_class: str


def insert(
    session: orm.Session,
    project_id: str | None,
    new: Sequence[NewArq],
    limits: quotas.Limits,
    allocation: str | None = None,
    consumer_nqn: str | None = None,
) -> list[Shown]:
    """Make ARQs of a project, of an allocation if there is one, whose consumer may be remote.

    :raises QuotaExceeded: the project would have more than ``limits``
    """
    quotas.enforce(session, project_id, limits, [each.resource_class for each in new])
    rows = [
        {
            "uuid": models.new_uuid(),
            "created_at": models.utcnow(),
            "project_id": project_id,
            "state": models.INITIAL,
            "device_profile_name": each.profile_name,
            "device_profile_uuid": each.profile_uuid,
            "device_profile_group_id": each.group_id,
            "group": each.group,
            "resource_class": each.resource_class,
            "allocation_uuid": allocation,
            "consumer_nqn": consumer_nqn,
        }
        for each in new
    ]
    if rows:
        session.execute(_INSERT, rows)
    created = [models.Arq(**row) for row in rows]
    notifications.announce(
        session, (notices.of_arq(notices.ARQ_CREATED, arq, models.INITIAL) for arq in created)
    )
    return [_shown(arq) for arq in created]


def _shown(arq: models.Arq, **more: Any) -> Shown:
    """An ARQ that has no binding; ``more`` are other fields."""
    return Shown(
        uuid=arq.uuid,
        state=arq.state,
        project_id=arq.project_id,
        device_profile_name=arq.device_profile_name,
        device_profile_group_id=arq.device_profile_group_id,
        created_at=arq.created_at,
        **more,
    )


def refuse_more(session: orm.Session, project_id: str | None, new: int, most: int) -> None:
    """Return if the project may have so many more ARQs.

    From here to the end of the caller's transaction no other one counts those of the project.

    :raises Forbidden: it would have more than ``most`` without an accelerator; 0 is no limit
    """
    if not most:
        return
    if project_id is not None:
        quotas.lock(session, project_id)
    number = session.scalar(_EMPTY, {"project": project_id, "most": most}) or 0
    if number + new > most:
        raise errors.Forbidden(
            f"The project has {number} accelerator requests without an accelerator, and may have "
            f"{most}. Delete those that no instance needs; see [api] max_unbound_arqs."
        )


def get_arq(ctx: RequestContext, uuid: str) -> Shown:
    """The caller's ARQ of that uuid, with its attach handle.

    :raises NotFound: there is none, or it is another project's
    """
    with db.reader() as session:
        for row in session.execute(_visible(ctx).where(_ARQ.uuid == uuid)):
            return Shown._make(row)
    raise errors.NotFound.of("ExtArq", uuid=uuid)


def access_key(ctx: RequestContext, uuid: str) -> dict[str, str]:
    """The secret of the handle of an ARQ of the caller's project, as answers show it.

    That of another project is shown to nobody, whatever the caller may do otherwise.

    :raises NotFound: there is no such ARQ, or it is another project's
    :raises Conflict: it is not Bound, or its handle has no secret
    """
    arq, handle = models.Arq, models.AttachHandle
    query = (
        sa.select(arq.state, handle.uuid, arq.access_key)
        .outerjoin(handle, handle.id == arq.attach_handle_id)
        .where(arq.uuid == uuid, arq.project_id == ctx.project_id)
    )
    with db.reader() as session:
        found = session.execute(query).one_or_none()
    if found is None:
        raise errors.NotFound.of("ExtArq", uuid=uuid)
    state, handle_uuid, key = found
    if state != models.BOUND:
        raise errors.Conflict(f"ARQ {uuid} is {state}; it has an access key once it is Bound.")
    if key is None:
        raise errors.Conflict(f"The attach handle of ARQ {uuid} has no access key.")
    return {"arq_uuid": uuid, "attach_handle_uuid": handle_uuid, "dhchap_key": key}


def list_arqs(
    ctx: RequestContext,
    page: paging.Page = paging.ALL,
    *,
    only_resolved: bool = False,
    **wanted: str,
) -> list[Shown]:
    """The caller's ARQs that have the values ``wanted``, with their attach handles.

    One SELECT; two if ``only_resolved`` is asked of some of an instance's ARQs. Those whose state
    is Deleting are no ARQs any more, see :func:`_deleting`.

    :raises Unresolved: ``only_resolved`` was asked for an instance that has an undecided ARQ
    :raises Invalid: ARQs cannot be sorted by that key, or the marker is no ARQ
    """
    if wanted.get("state") == models.DELETING:
        return [] if only_resolved else _deleting(ctx, page, wanted)
    instance = wanted.get("instance_uuid")
    if instance is None:
        where = (_ARQ.state.in_(arq_states.RESOLVED),) if only_resolved else ()
        return _select(ctx, page, wanted, *where)
    is_plain = len(wanted) == 1 and page == paging.Page(limit=page.limit)
    if is_plain and page.limit is not None:
        # What Nova asks for with each boot.
        found = _of_instance(ctx, instance, page.limit)
    else:
        found = _select(ctx, page, wanted)
    if only_resolved:
        _refuse_undecided(ctx, page, wanted, found)
    return found


def _select(
    ctx: RequestContext,
    page: paging.Page,
    wanted: Mapping[str, str],
    *where: sa.ColumnElement[bool],
) -> list[Shown]:
    with db.reader() as session:
        query = paging.select(session, _visible(ctx), COLUMNS, page, wanted, where=where)
        return [Shown._make(row) for row in session.execute(query)]


def _refuse_undecided(
    ctx: RequestContext, page: paging.Page, wanted: Mapping[str, str], found: Sequence[Shown]
) -> None:
    """Return if no ARQ of the wanted instance is undecided, whether it is found or not."""
    instance = wanted["instance_uuid"]
    is_part = len(wanted) > 1 or page.marker is not None or len(found) == page.limit
    is_decided = all(arq.state in arq_states.RESOLVED for arq in found)
    if not is_decided or (is_part and _has_undecided(ctx, instance)):
        raise errors.Unresolved(f"Some ARQs of instance {instance} are not resolved yet.")


def _of_instance(ctx: RequestContext, instance: str, limit: int) -> list[Shown]:
    scope = ctx.project_scope
    given = {"instance": instance, "limit": limit}
    given |= {} if scope is None else {"project": scope}
    return [Shown._make(row) for row in db.rows(_OF_INSTANCE[scope is not None], given)]


def refuse_failed(ctx: RequestContext, arqs: Iterable[Shown]) -> None:
    """Return if none of an instance's ARQs is BindFailed.

    :raises Conflict: one is
    """
    failed = next((arq for arq in arqs if arq.state == models.BIND_FAILED), None)
    if failed is not None:
        reason = shown(ctx, failed.state_reason, failed.private_reason)
        raise errors.Conflict(
            f"ARQ {failed.uuid} of instance {failed.consumer_uuid} could not be bound: "
            f"{reason} Delete the ARQs of the instance, or bind them elsewhere."
        )


def await_binds(ctx: RequestContext, instance: str, seconds: float) -> None:
    """Block until all binds of an instance ended, one failed, or ``seconds`` passed."""
    query = _visible(ctx).with_only_columns(_ARQ.state).distinct()
    query = query.where(_ARQ.consumer_uuid == instance)
    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while time.monotonic() < deadline:
        found = set(db.read_all(query))
        if models.BIND_STARTED not in found or models.BIND_FAILED in found:
            return
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _has_undecided(ctx: RequestContext, instance: str) -> bool:
    query = _visible(ctx).with_only_columns(_ARQ.id).limit(1)
    query = query.where(_ARQ.consumer_uuid == instance)
    query = query.where(_ARQ.state.not_in(arq_states.RESOLVED))
    return db.read_one(query) is not None


def _visible(ctx: RequestContext) -> sa.Select[Any]:
    """The ARQs that the caller may see."""
    return _SHOWN.where(*in_scope(ctx))


_LEFT = models.AttachHandle
#: The same columns of attach handles that deleted ARQs have left.
_LEFT_COLUMNS: dict[str, Any] = {
    "id": _LEFT.id,
    "uuid": _LEFT.left_arq,
    "state": sa.literal(models.DELETING),
    "device_profile_name": _LEFT.left_profile,
    "hostname": _LEFT.left_host,
    "device_rp_uuid": models.Deployable.rp_uuid,
    "instance_uuid": _LEFT.left_consumer,
    "project_id": _LEFT.left_project,
    "created_at": _LEFT.left_created_at,
    "updated_at": _LEFT.updated_at,
}


def _deleting(ctx: RequestContext, page: paging.Page, wanted: Mapping[str, str]) -> list[Shown]:
    """What deleted ARQs have left that is not clean yet, each as the ARQ that it was."""
    visible: sa.Select[Any] = sa.select(_LEFT).join(_LEFT.deployable)
    visible = visible.where(handle_states.is_shown())
    if ctx.project_scope is not None:
        visible = visible.where(_LEFT.left_project == ctx.project_scope)
    with db.reader() as session:
        query = paging.select(session, visible, _LEFT_COLUMNS, page, wanted)
        left: list[models.AttachHandle] = list(session.scalars(query))
    found = [(handle, handle_states.who_left(handle)) for handle in left]
    return [
        _shown(
            arq,
            updated_at=handle.updated_at,
            hostname=arq.hostname,
            device_rp_uuid=arq.device_rp_uuid,
            handle_uuid=handle.uuid,
            attach_type=handle.attach_type,
            attach_info=handle.attach_info,
        )
        for handle, arq in found
    ]


def in_scope(ctx: RequestContext) -> list[sa.ColumnElement[Any]]:
    """The WHERE clauses that limit a caller to its own project."""
    if ctx.project_scope is None:
        return []
    return [_ARQ.project_id == ctx.project_scope]


@db.retry
def healths(handle_uuids: Collection[str]) -> Mapping[str, str]:
    """The health of the devices of attach handles, by the uuids of the handles; one SELECT."""
    device, deployable, handle = models.Device, models.Deployable, models.AttachHandle
    health = sa.case((availability.healthy(), query.HEALTHY), else_=query.UNHEALTHY)
    rows = (
        sa.select(handle.uuid, health)
        .join(deployable, deployable.id == handle.deployable_id)
        .join(device, device.id == deployable.device_id)
        .where(handle.uuid.in_(handle_uuids))
    )
    with db.reader() as session:
        return dict(list(session.execute(rows))) if handle_uuids else {}
