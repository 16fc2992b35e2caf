# SPDX-License-Identifier: Apache-2.0
"""What must always be true of the database, whichever process died: each check is one SELECT.

Constraints of the schema guarantee that at most one ARQ holds a handle. These checks are for what
constraints cannot express, such as that everything unfinished has a row of work to finish it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, notifications, work
from cyborg.audits.finding import Finding
from cyborg.db import models
from cyborg.programming import operations, program
from cyborg.states import allocation_states

#: Seconds within which some conductor does the work of a row, or tries to, whichever of them dies.
DONE_WITHIN = 120

#: Kinds of work with a single row, whose key names no object, and the one that is about consumers
#: whose allocation has ended.
_OF_THE_CLOUD = frozenset({work.INSTANCES, notifications.KIND, work.LATE_CLAIM})


#: What is said of each row that a query finds, with its columns in place of the braces.
_Rule = tuple[str, sa.Executable]


def _broken(session: orm.Session, check: str, *rules: Iterable[_Rule]) -> list[Finding]:
    return [
        Finding(check, said.format(*row))
        for said, query in itertools.chain(*rules)
        for row in session.execute(query)
    ]


def violations() -> list[Finding]:
    """Each ARQ, handle, deployable, host or operation that breaks a rule.

    All is read in one transaction, so that a concurrent change is seen as a whole or not at all.
    """
    with db.snapshot() as session:
        found = _broken(
            session,
            "database",
            _wrong_fields(),
            _wrong_handles(),
            _wrong_provider(),
            _without_work(),
            _gone_but_kept(),
            _wrong_parent(),
            _removed_but_kept(),
            _given_without_agent(),
            _programs_without_work(),
            _wrong_end(),
            _wrong_allocations(),
        )
        return [*found, *_wrong_function(session)]


def orphans(age: float = DONE_WITHIN) -> list[Finding]:
    """Each row of work whose object does not exist, and work not taken.

    Rows younger than ``age`` seconds do not count: a conductor may still take them. Some kinds of
    work are about the whole cloud and name no object.
    """
    with db.reader() as session:
        return _broken(session, "work", _not_done(db.now_ms() - round(age * 1000)))


@db.retry
def withheld() -> list[Finding]:
    """Each attach handle and each provider that is given to nobody until it is clean or known."""
    with db.reader() as session:
        unclean = _broken(session, "cleaning", _not_clean())
        return [*unclean, *_broken(session, "placement", _not_known())]


def _not_clean() -> Iterator[_Rule]:
    handle, deployable, device = models.AttachHandle, models.Deployable, models.Device
    query = (
        sa.select(handle.uuid, device.uuid, handle.left_arq, handle.left_reason)
        .join(deployable, deployable.id == handle.deployable_id)
        .join(device, device.id == deployable.device_id)
        .where(handle.left_reason.is_not(None))
        .order_by(handle.left_ms, handle.id)
    )
    said = "Attach handle {} of device {} is given to nobody, as it is not clean after accelerator "
    yield f"{said}request {{}}: {{}}", query


def _not_known() -> Iterator[_Rule]:
    row = models.ResourceProvider
    query = sa.select(row.name, row.uuid, row.withheld).where(row.withheld.is_not(None))
    yield "Nothing of provider {} ({}) is given out: {}", query.order_by(row.name)


def _not_done(old: sa.ColumnElement[int]) -> Iterator[_Rule]:
    row, notice = models.Work, models.Notification
    free = sa.or_(row.owner.is_(None), row.lease_ms < db.now_ms())
    about_nothing = (
        sa.select(row.kind, row.key)
        .where(
            free,
            row.wanted_ms < old,
            row.kind.not_in(_OF_THE_CLOUD),
            *(~found for found in _names(row.key)),
        )
        .order_by(row.kind, row.key)
    )
    yield "Work {}/{} is about nothing that there is.", about_nothing
    waited = (db.now_ms() - sa.func.min(row.due_ms)) // 1000
    left_alone = (
        sa.select(row.kind, sa.func.count(), waited)
        .where(free, row.due_ms < old)
        .group_by(row.kind)
        .order_by(row.kind)
    )
    said = "No conductor does the work of kind {}: {} rows wait, for up to {} seconds."
    yield said, left_alone
    # Without work to send them, because no conductor is configured to send.
    count, has_work = sa.func.count(notice.id), sa.exists().where(row.kind == notifications.KIND)
    unsent = sa.select(count).where(notice.occurred_ms < old, ~has_work).having(count > 0)
    said = f"give [{notifications.GROUP}] driver the same value for all services."
    yield f"No conductor sends notifications, and {{}} wait: {said}", unsent


def _names(key: orm.InstrumentedAttribute[str]) -> list[sa.Exists]:
    """Whether ``key`` is the name or the uuid of an object that there can be work for."""
    columns = (
        models.Host.name,
        models.Arq.consumer_uuid,
        models.Arq.uuid,
        models.AttachHandle.uuid,
        models.Deployable.uuid,
        models.Device.uuid,
        models.FunctionPool.uuid,
        models.Allocation.uuid,
    )
    return [sa.exists().where(column == key) for column in columns]


def _wrong_fields() -> Iterator[_Rule]:
    """A bound ARQ has all fields of its binding, and an unbound one has none of them."""
    arq = models.Arq
    complete = sa.and_(
        arq.hostname.is_not(None), arq.device_rp_uuid.is_not(None), arq.consumer_uuid.is_not(None)
    )
    bare = sa.and_(
        arq.hostname.is_(None), arq.device_rp_uuid.is_(None), arq.consumer_uuid.is_(None)
    )
    query = sa.select(arq.uuid, arq.state).where(
        sa.or_(
            sa.and_(arq.state == models.BOUND, sa.or_(~complete, arq.attach_handle_id.is_(None))),
            sa.and_(arq.state.in_({models.BIND_STARTED, models.BIND_FAILED}), ~complete),
            sa.and_(arq.state.in_({models.INITIAL, models.UNBOUND}), ~bare),
            sa.and_(arq.state.not_in(models.SERVING), arq.attach_handle_id.is_not(None)),
            arq.state == models.DELETING,
        )
    )
    yield "ARQ {} is {}, but its fields or its attach handle do not fit that.", query


def _wrong_handles() -> Iterator[_Rule]:
    """A handle that was left is nobody's, is known by whom, and has work; a clean one has none."""
    handle, arq, step = models.AttachHandle, models.Arq, models.Work
    held = sa.exists().where(arq.attach_handle_id == handle.id)
    works = sa.exists().where(step.kind == work.HOST_STEP, step.key == handle.uuid)
    known = sa.and_(handle.left_arq.is_not(None), handle.left_ms.is_not(None))
    noted = sa.or_(
        handle.left_arq.is_not(None),
        handle.left_ms.is_not(None),
        handle.left_reason.is_not(None),
        handle.needs_write,
    )
    wrong = sa.or_(
        sa.and_(handle.is_left, sa.or_(held, ~works, ~known)), sa.and_(~handle.is_left, noted)
    )
    query = sa.select(handle.uuid, handle.state).where(wrong)
    yield "Attach handle {} is {}, and its user, its fields or its work do not fit.", query


def _wrong_provider() -> Iterator[_Rule]:
    """An ARQ has a handle of the resource provider that it asked for."""
    arq, handle, deployable = models.Arq, models.AttachHandle, models.Deployable
    query = (
        sa.select(arq.uuid, arq.device_rp_uuid, deployable.rp_uuid)
        .join(handle, handle.id == arq.attach_handle_id)
        .join(deployable, deployable.id == handle.deployable_id)
        .where(arq.device_rp_uuid != deployable.rp_uuid)
    )
    yield "ARQ {} asked for provider {} and has a handle of {}.", query


def _without_work() -> Iterator[_Rule]:
    """An ARQ in a state that must end has a row of work that ends it."""
    arq, handle = models.Arq, models.AttachHandle
    undecided = sa.and_(arq.state == models.BIND_STARTED, arq.attach_handle_id.is_(None))
    stepping = sa.and_(arq.attach_handle_id.is_not(None), arq.state == models.BIND_STARTED)
    bind, step = orm.aliased(models.Work), orm.aliased(models.Work)
    query = (
        sa.select(arq.uuid, arq.state)
        .outerjoin(handle, handle.id == arq.attach_handle_id)
        .outerjoin(bind, sa.and_(bind.kind == work.BIND, bind.key == arq.consumer_uuid))
        .outerjoin(step, sa.and_(step.kind == work.HOST_STEP, step.key == handle.uuid))
        .where(sa.or_(sa.and_(undecided, bind.id.is_(None)), sa.and_(stepping, step.id.is_(None))))
    )
    yield "ARQ {} is {}, and there is no work that would end that.", query


def _gone_but_kept() -> Iterator[_Rule]:
    """What vanished from its host is kept only while an ARQ holds it, or it is not clean."""
    arq, handle, deployable = models.Arq, models.AttachHandle, models.Deployable
    held = sa.exists().where(arq.attach_handle_id == handle.id)
    free = ~sa.or_(held, handle.is_left)
    may_go = models.Device.kept_until_ms.is_(None)
    query = sa.select(handle.uuid).join(handle.deployable).join(deployable.device)
    query = query.where(handle.missing.is_(True), free, may_go)
    yield "Attach handle {} has vanished from its host, is free, and is still kept.", query
    handles = sa.exists().where(handle.deployable_id == deployable.id)
    child = orm.aliased(deployable)
    children = sa.exists().where(child.parent_id == deployable.id)
    empty = sa.select(deployable.name).join(deployable.device)
    empty = empty.where(deployable.missing.is_(True), ~handles, ~children, may_go)
    yield "Deployable {} has vanished from its host, holds nothing, and is still kept.", empty


def _wrong_parent() -> Iterator[_Rule]:
    """A parent belongs to the same device; the root is the parent's root, or else the parent."""
    deployable = models.Deployable
    parent = orm.aliased(deployable)
    top = sa.func.coalesce(parent.root_id, parent.id)
    query = (
        sa.select(deployable.name)
        .outerjoin(parent, parent.id == deployable.parent_id)
        .where(
            sa.or_(
                parent.device_id != deployable.device_id,
                deployable.root_id != top,
                deployable.root_id.is_(None) != top.is_(None),
            )
        )
    )
    yield "Deployable {} has a parent that does not fit its device or its root.", query


def _removed_but_kept() -> Iterator[_Rule]:
    """A removed host has no devices, and has work that deletes it once Placement is clean."""
    host = models.Host
    device = sa.exists().where(models.Device.host_id == host.id)
    wanted = sa.exists().where(models.Work.kind == work.PLACEMENT, models.Work.key == host.name)
    query = sa.select(host.name).where(host.removed.is_(True), sa.or_(device, ~wanted))
    yield "Host {} was removed, but has devices, or no work that would forget it.", query


def _given_without_agent() -> Iterator[_Rule]:
    """A host without agent has devices, and nothing that could be given out."""
    host, device = models.Host, models.Device
    deployable = sa.exists().where(
        models.Deployable.device_id == device.id, device.host_id == host.id
    )
    provider = sa.exists().where(models.ResourceProvider.host_id == host.id)
    has_any = sa.or_(deployable, provider, host.drained, host.tainted, host.removed)
    query = sa.select(host.name).where(host.managed_by == models.IRONIC, has_any)
    yield "Host {} has no agent, and has something of what only agents' hosts have.", query


def _programs_without_work() -> Iterator[_Rule]:
    """What is being programmed has a row of work that ends it.

    A missing deployable that is in doubt has none: the report that shows it again makes the row.
    """
    deployable, operation = models.Deployable, models.Operation
    unended = operation.active.is_not(None), ~_has_work(operation.active.expression)
    query = sa.select(operation.uuid).where(*unended)
    yield "Operation {} has not ended, and there is no work that would end it.", query
    query = sa.select(deployable.name).where(
        ~models.Deployable.is_settled,
        deployable.missing.is_(False),
        ~_has_work(deployable.uuid.expression),
    )
    yield "Deployable {} is in doubt, and there is no work that would end that.", query


def _has_work(deployable_uuid: sa.ColumnElement[Any]) -> sa.Exists:
    row = models.Work
    return sa.exists().where(row.kind == work.PROGRAM, row.key == deployable_uuid)


def _wrong_end() -> Iterator[_Rule]:
    """An operation that has ended is not active, and any other is."""
    operation = models.Operation
    ended = operation.state.in_({operations.SUCCEEDED, operations.FAILED})
    query = sa.select(operation.uuid, operation.state).where(ended != operation.active.is_(None))
    yield "Operation {} is {}, which does not fit whether it has ended.", query


def _wrong_function(session: orm.Session) -> Iterator[Finding]:
    """A Bound ARQ's deployable runs the function that the ARQ asked for.

    It is not known what a deployable runs that is not programmed any more.
    """
    arq, handle, deployable = models.Arq, models.AttachHandle, models.Deployable
    asks = sa.type_coerce(arq.group, sa.Text).contains('"accel:')
    query = (
        sa.select(arq, deployable)
        .join(handle, handle.id == arq.attach_handle_id)
        .join(deployable, deployable.id == handle.deployable_id)
        .where(
            arq.state == models.BOUND,
            models.Deployable.is_settled,
            deployable.program_mode.is_not(None),
            asks,
        )
    )
    for found, on in session.execute(query):
        what = program.of_group(found.request)
        if what and not what.is_run_by(on):
            said = f"ARQ {found.uuid} is Bound to {on.name}, which does not run {what}."
            yield Finding("database", said)


def _wrong_allocations() -> Iterator[_Rule]:
    """An allocation has all its ARQs, or none, or work; and no ARQ is of one that is not there."""
    row, arq = models.Allocation, models.Arq
    mine = arq.allocation_uuid == row.uuid
    count, bound = (
        sa.select(sa.func.count(arq.id)).where(mine, *where).scalar_subquery()
        for where in ((), (arq.state == models.BOUND,))
    )
    whole = sa.and_(count == row.accelerators, bound == row.accelerators)
    right = sa.or_(
        sa.and_(row.state == allocation_states.ACTIVE, whole),
        sa.and_(row.state == allocation_states.FAILED, count == 0),
        sa.exists().where(models.Work.kind == work.ALLOCATE, models.Work.key == row.uuid),
        # The end of these binds wants the work.
        sa.and_(
            row.state == allocation_states.BINDING,
            sa.exists().where(mine, arq.state == models.BIND_STARTED),
        ),
    )
    query = sa.select(row.uuid, row.state).where(~right)
    yield "Allocation {} is {}, its ARQs do not fit that, and no work would end it.", query
    lost = sa.select(arq.uuid, arq.allocation_uuid).where(
        arq.allocation_uuid.is_not(None), ~sa.exists().where(row.uuid == arq.allocation_uuid)
    )
    yield "ARQ {} is of allocation {}, which does not exist.", lost
