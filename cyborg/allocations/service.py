# SPDX-License-Identifier: Apache-2.0
"""Allocations as consumers see them: create, get, list, renew and delete; and how they expire.

What is created or deleted is recorded with its ARQs in one transaction; a conductor makes
Placement follow (:mod:`.allocation_steps`).
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, nova, quotas, work
from cyborg.allocations import choosing, plans, shortages, wishes
from cyborg.arqs import service
from cyborg.common import errors
from cyborg.db import models, paging
from cyborg.drivers import base
from cyborg.handles import release as arq_release
from cyborg.peers import clients
from cyborg.policy.context import RequestContext
from cyborg.policy.rules import host
from cyborg.states import allocation_states as states

LOG = logging.getLogger(__name__)

_ARQ = models.Arq

_ROW = models.Allocation
_KIND = "Allocation"

#: Columns by which a list may be sorted and narrowed; the names are those of the REST API.
COLUMNS = paging.columns(
    _ROW,
    *("id", "uuid", "state", "consumer_type", "consumer_name", "project_id"),
    *("created_at", "updated_at"),
)

_HELD = orm.aliased(models.AttachHandle)
#: What the agent of its host makes of an ARQ's handle for containers; None if it does not.
_CDI_KIND = (
    sa.select(models.Attribute.value)
    .join(_HELD, _HELD.deployable_id == models.Attribute.deployable_id)
    .where(
        _HELD.id == models.Arq.attach_handle_id,
        models.Attribute.key == base.CDI_KIND_KEY,
        models.Attribute.origin == "driver",
    )
    .correlate(models.Arq)
    .scalar_subquery()
)

#: Seconds between two looks at an allocation that a request waits for: at first, if another process
#: changes it, and at most; and how much longer each pause is than the one before.
_FIRST_PAUSE, _LONGEST_PAUSE, _LONGER = 0.01, 0.5, 1.1

#: Allocations that are released in one transaction, as nobody asks for them any more.
_BATCH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAllocation:
    """An allocation with its ARQs."""

    row: models.Allocation
    arqs: Sequence[models.Arq]
    #: The kind of CDI device that the handle of an ARQ is on its host, by the uuid of the ARQ.
    cdi_kinds: Mapping[str, str]

    @property
    def uuid(self) -> str:
        """The uuid of its consumer."""
        return self.row.uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The alternative that there is room for, and where."""

    alternative: int
    plan: plans.Plan


def choose(
    conf: cfg.ConfigOpts,
    ctx: RequestContext,
    wish: plans.Wish,
    take: Callable[[Choice], None],
) -> Choice:
    """The first alternative that there is room for, and that may be taken, and its place.

    :raises Conflict: there is room for none; the message says what is short of what, as far as the
        caller may know it
    :raises Forbidden: there is room, and ``take`` has refused each with room; for the first
    :raises NotOffered: there is no Placement
    :raises ServiceUnavailable: Placement cannot be asked
    """
    chooser = choosing.Chooser(conf, wish.placing, len(wish.alternatives), ctx.project_id)
    refused: list[errors.Forbidden] = []
    for number, parts in enumerate(wish.alternatives):
        if plan := chooser.choose(parts):
            choice = Choice(alternative=number, plan=plan)
            try:
                take(choice)
            except errors.Forbidden as exc:
                # Another alternative may be smaller, or of another class.
                refused.append(exc)
            else:
                return choice
    if refused:
        raise refused[0]
    short = shortages.explain(conf, wish.alternatives, of_hosts=ctx.may(host.GET_ONE))
    raise errors.Conflict(f"There is no room for this now: {short}.")


def create(
    conf: cfg.ConfigOpts, ctx: RequestContext, wish: plans.Wish, limits: quotas.Limits
) -> None:
    """Record an allocation, unless the consumer has this very one already.

    :raises Conflict: there is no room for it, or the consumer has another one
    :raises QuotaExceeded: the project would have more than ``limits``
    :raises Forbidden: it would have too many ARQs without an accelerator
    :raises ServiceUnavailable: Nova or Placement cannot be asked
    """
    if _is_known(ctx, wish):
        # Placement may have lost what it holds.
        work.want_once(work.ALLOCATE, wish.uuid)
        return
    _refuse_server(conf, wish.uuid)
    most = conf.api.max_unbound_arqs
    with quotas.announcing():
        choose(conf, ctx, wish, lambda choice: _record(ctx, wish, choice, limits, most))


def preview(
    conf: cfg.ConfigOpts, ctx: RequestContext, wish: plans.Wish, limits: quotas.Limits
) -> Choice:
    """The choice that :func:`create` would make, or has made before; nothing is claimed.

    :raises CyborgError: as :func:`create` would
    """
    if _is_known(ctx, wish):
        with db.reader() as session:
            found = paging.get(session, _visible(ctx), COLUMNS, _KIND, uuid=wish.uuid)
            return Choice(alternative=found.alternative, plan=plans.load(found.plan))
    _refuse_server(conf, wish.uuid)
    most = conf.api.max_unbound_arqs
    return choose(
        conf,
        ctx,
        wish,
        lambda choice: _refuse_beyond(ctx, wish.uuid, plans.arqs(choice.plan), limits, most),
    )


@db.retry
def _refuse_beyond(
    ctx: RequestContext,
    uuid: str,
    new: Sequence[service.NewArq],
    limits: quotas.Limits,
    most: int,
) -> None:
    with db.writer() as session:
        _refuse_instance(session, uuid)
        service.refuse_more(session, ctx.project_id, len(new), most)
        quotas.enforce(session, ctx.project_id, limits, [each.resource_class for each in new])


def _is_known(ctx: RequestContext, wish: plans.Wish) -> bool:
    found = db.read_one(sa.select(_ROW).where(_ROW.uuid == wish.uuid))
    return found is not None and _is_same(ctx, wish, found)


def _is_same(ctx: RequestContext, wish: plans.Wish, found: models.Allocation) -> bool:
    """The consumer has what is asked for; False if it has nothing, after a failure.

    :raises Conflict: it has something else
    """
    if found.project_id != ctx.project_id:
        raise errors.Conflict(
            f"{wish.uuid} is a consumer of another project; give another uuid.", "consumer"
        )
    if found.state in {states.FAILING, states.RELEASING}:
        raise errors.Conflict(
            f"what {wish.uuid} had is being given back; try again in a moment.", "consumer"
        )
    if found.state == states.FAILED:
        return False
    if wishes.normal(found.request) != wishes.normal(wish.request):
        raise errors.Conflict(
            f"{wish.uuid} has an allocation already, with other contents; delete that first.",
            "consumer",
        )
    return True


@db.retry
def _record(
    ctx: RequestContext, wish: plans.Wish, choice: Choice, limits: quotas.Limits, most: int
) -> None:
    with db.writer() as session:
        found = states.find_locked(session, wish.uuid)
        if found is not None and _is_same(ctx, wish, found):
            return
        _refuse_instance(session, wish.uuid)
        new = plans.arqs(choice.plan)
        service.refuse_more(session, ctx.project_id, len(new), most)
        values = _columns(ctx, wish, choice) | {"accelerators": len(new)}
        if found is not None:
            if not states.enter(session, states.CLAIMING, wish.uuid, **values):
                raise db.RestartTransaction
        else:
            values |= {"uuid": wish.uuid, "state": states.CLAIMING, "created_at": models.utcnow()}
            # Another request for the same consumer may be faster.
            with db.restarting():
                session.execute(sa.insert(_ROW).values(**values))
        service.insert(session, ctx.project_id, new, limits, wish.uuid, wish.consumer_nqn)
        work.want(session, work.ALLOCATE, [wish.uuid])
    LOG.info("Allocation %s is asked for: %d accelerators", wish.uuid, len(new))


def _columns(ctx: RequestContext, wish: plans.Wish, choice: Choice) -> dict[str, Any]:
    lease = wish.lease_seconds
    return {
        "project_id": ctx.project_id,
        "user_id": ctx.user_id or "unknown",
        "consumer_type": wish.consumer_type,
        "consumer_name": wish.consumer_name,
        "state_reason": None,
        "private_reason": None,
        "reason_code": None,
        "request": dict(wish.request),
        "alternative": choice.alternative,
        "plan": plans.store(choice.plan),
        "lease_seconds": lease,
        "lease_ms": None if lease is None else _end_of(lease),
    }


def _end_of(lease_seconds: int) -> sa.ColumnElement[int]:
    return db.now_ms() + lease_seconds * 1000


def _refuse_instance(session: orm.Session, uuid: str) -> None:
    of_nova = (_ARQ.consumer_uuid == uuid, _ARQ.allocation_uuid.is_(None))
    if session.scalar(sa.select(_ARQ.id).where(*of_nova).limit(1)) is not None:
        raise _is_instance(uuid)


def _refuse_server(conf: cfg.ConfigOpts, uuid: str) -> None:
    """Raise Conflict if Nova, where there is one, has a server of that uuid, whatever it has."""
    if not clients.configured(conf, "nova"):
        return
    try:
        found = nova.is_there(conf, uuid)
    except ka_exc.ClientException as exc:
        raise errors.ServiceUnavailable("Nova cannot be reached at present.") from exc
    if found:
        raise _is_instance(uuid)
    if found is None:
        raise errors.ServiceUnavailable(
            f"Nova does not say at present whether consumer {uuid} is an instance."
        )


def _is_instance(uuid: str) -> errors.Conflict:
    return errors.Conflict(f"{uuid} is an instance of Nova's; give another uuid.", "consumer")


def await_end(ctx: RequestContext, uuid: str, seconds: float) -> None:
    """Block until it is known whether an allocation can be used, or ``seconds`` have passed."""
    query = _visible(ctx).with_only_columns(_ROW.state).where(_ROW.uuid == uuid)
    # Each look takes time from a conductor that is here.
    pause = _LONGEST_PAUSE if states.are_changed_here() else _FIRST_PAUSE
    deadline = time.monotonic() + seconds
    with states.watched(uuid) as changed:
        while time.monotonic() < deadline:
            # Cleared before the look, so that a change during it causes another one.
            changed.clear()
            if db.read_one(query) not in {states.CLAIMING, states.BINDING, states.FAILING}:
                return
            changed.wait(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(_LONGER * pause, _LONGEST_PAUSE)


def get(ctx: RequestContext, uuid: str) -> FullAllocation:
    """The caller's allocation of that consumer.

    :raises NotFound: there is none, or it is another project's
    """
    with db.reader() as session:
        row = paging.get(session, _visible(ctx), COLUMNS, _KIND, uuid=uuid)
        return _with_arqs(session, [row])[0]


def list_allocations(
    ctx: RequestContext, page: paging.Page = paging.ALL, **wanted: str
) -> list[FullAllocation]:
    """The caller's allocations that have the values ``wanted``. Two SELECTs.

    :raises Invalid: allocations cannot be sorted by that key, or the marker is none
    """
    with db.reader() as session:
        rows = paging.fetch(session, _visible(ctx), COLUMNS, page, wanted)
        return _with_arqs(session, rows)


def _with_arqs(session: orm.Session, rows: Sequence[models.Allocation]) -> list[FullAllocation]:
    query = (
        sa.select(_ARQ, _CDI_KIND)
        .where(_ARQ.allocation_uuid.in_([row.uuid for row in rows]))
        .options(orm.joinedload(_ARQ.attach_handle))
        .order_by(_ARQ.id)
    )
    found: dict[str | None, list[models.Arq]] = {}
    kinds: dict[str, str] = {}
    for each, kind in session.execute(query) if rows else ():
        found.setdefault(each.allocation_uuid, []).append(each)
        if kind is not None:
            kinds[each.uuid] = kind
    return [FullAllocation(row=row, arqs=found.get(row.uuid, []), cdi_kinds=kinds) for row in rows]


def renew(ctx: RequestContext, uuid: str, seconds: int | None) -> None:
    """Have the lease of an allocation begin again: for so long, or as long as before.

    :raises NotFound: there is no such allocation
    :raises Conflict: it has no lease, or nothing is held for it
    """
    # Placement may have lost what it holds. What waits already is not begun anew.
    work.want_once(work.ALLOCATE, _renew(ctx, uuid, seconds))


@db.retry
def _renew(ctx: RequestContext, uuid: str, seconds: int | None) -> str:
    with db.writer() as session:
        row = _find_locked(session, ctx, uuid)
        lease = row.lease_seconds if seconds is None else seconds
        if lease is None:
            raise errors.Conflict(
                f"Allocation {uuid} has no lease: it is kept until it is deleted. Give "
                "lease_seconds to have it end by itself."
            )
        if row.state not in states.LIVE:
            raise errors.Conflict(
                f"Allocation {uuid} is {row.state}: nothing is held for it; ask for it again."
            )
        row.lease_seconds, row.updated_at = lease, models.utcnow()
        session.flush()
        db.update(session, _ROW, _ROW.id == row.id, lease_ms=_end_of(lease))
        return row.uuid


@db.retry
def delete(ctx: RequestContext, uuid: str) -> None:
    """Give back all that a consumer has, or is about to have.

    :raises NotFound: there is no such allocation
    """
    with db.writer() as session:
        release(session, _find_locked(session, ctx, uuid))


def _find_locked(session: orm.Session, ctx: RequestContext, uuid: str) -> models.Allocation:
    return paging.get(session, _visible(ctx).with_for_update(), COLUMNS, _KIND, uuid=uuid)


def release(session: orm.Session, row: models.Allocation) -> None:
    """Give back all of a locked allocation; a conductor deletes it when Placement has it back."""
    if states.enter(session, states.RELEASING, row.uuid):
        free_arqs(session, row.uuid)
        work.want(session, work.ALLOCATE, [row.uuid])


def release_expired(_conf: cfg.ConfigOpts) -> None:
    """Release the allocations whose lease has ended."""
    due = (_ROW.lease_ms < db.now_ms(), _ROW.state.in_(states.LIVE))
    for ended in db.change_due(_ROW, *due, limit=_BATCH, change=_release):
        LOG.warning("The lease of allocation %s has ended; it is released", ended.uuid)


def forget_failed(conf: cfg.ConfigOpts) -> None:
    """Delete the allocations that failed ``[conductor] arq_expiry`` ago."""
    seconds = conf.conductor.arq_expiry
    if seconds:
        changed = sa.func.coalesce(_ROW.updated_at, _ROW.created_at)
        before = models.utcnow() - datetime.timedelta(seconds=seconds)
        due = (_ROW.state == states.FAILED, changed < before)
        db.change_due(_ROW, *due, limit=_BATCH, change=_release)


def _release(session: orm.Session, rows: list[models.Allocation]) -> None:
    for row in rows:
        release(session, row)


def free_arqs(session: orm.Session, uuid: str) -> None:
    """Delete the ARQs of a locked allocation, as a DELETE of each would."""
    query = sa.select(_ARQ).where(_ARQ.allocation_uuid == uuid)
    arq_release.delete(session, list(session.scalars(query.order_by(_ARQ.id).with_for_update())))


def _visible(ctx: RequestContext) -> sa.Select[models.Allocation]:
    """The allocations that the caller may see: one that is Releasing is gone for its owner."""
    where: Collection[Any] = [_ROW.state != states.RELEASING]
    if ctx.project_scope is not None:
        where = [*where, _ROW.project_id == ctx.project_scope]
    return sa.select(_ROW).where(*where)
