# SPDX-License-Identifier: Apache-2.0
"""Consistency of the database, whichever process died: each check is one SELECT.

Constraints of the schema guarantee that at most one ARQ holds a handle. These checks are for what
constraints cannot express, such as that everything unfinished has a row of work to finish it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, notifications, work
from cyborg.audits.finding import Finding
from cyborg.db import models
from cyborg.programming import operations, program
from cyborg.states import allocation_states

_HOST, _DEVICE, _DEPLOYABLE = models.Host, models.Device, models.Deployable
_HANDLE, _ARQ, _ALLOCATION = models.AttachHandle, models.Arq, models.Allocation
_WORK, _OPERATION, _NOTICE = models.Work, models.Operation, models.Notification

#: Seconds within which some conductor does the work of a row, or tries to, whichever of them dies.
DONE_WITHIN = 120

#: Kinds of work with a single row, whose key names no object, and the one that is about consumers
#: whose allocation has ended.
_OF_THE_CLOUD = frozenset({work.INSTANCES, notifications.KIND, work.LATE_CLAIM})


#: What is said of each row that a query finds, with its columns in place of the braces.
_Rule = tuple[str, sa.Executable]


def _broken(session: orm.Session, check: str, rules: Iterable[_Rule]) -> list[Finding]:
    return [
        Finding(check, said.format(*row))
        for said, query in rules
        for row in session.execute(query)
    ]


def violations() -> list[Finding]:
    """Each ARQ, handle, deployable, host or operation that breaks a rule.

    All is read in one transaction, so that a concurrent change is seen as a whole or not at all.
    """
    with db.snapshot() as session:
        return [*_broken(session, "database", _rules()), *_wrong_function(session)]


@functools.cache
def _rules() -> tuple[_Rule, ...]:
    return (
        *_wrong_fields(),
        *_wrong_handles(),
        *_wrong_provider(),
        *_without_work(),
        *_gone_but_kept(),
        *_wrong_parent(),
        *_removed_but_kept(),
        *_given_without_agent(),
        *_programs_without_work(),
        *_wrong_end(),
        *_wrong_allocations(),
    )


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
    query = (
        sa.select(_HANDLE.uuid, _DEVICE.uuid, _HANDLE.left_arq, _HANDLE.left_reason)
        .join(_DEPLOYABLE, _DEPLOYABLE.id == _HANDLE.deployable_id)
        .join(_DEVICE, _DEVICE.id == _DEPLOYABLE.device_id)
        .where(_HANDLE.left_reason.is_not(None))
        .order_by(_HANDLE.left_ms, _HANDLE.id)
    )
    said = "Attach handle {} of device {} is given to nobody, as it is not clean after accelerator "
    yield f"{said}request {{}}: {{}}", query


def _not_known() -> Iterator[_Rule]:
    row = models.ResourceProvider
    query = sa.select(row.name, row.uuid, row.withheld).where(row.withheld.is_not(None))
    yield "Nothing of provider {} ({}) is given out: {}", query.order_by(row.name)


def _not_done(old: sa.ColumnElement[int]) -> Iterator[_Rule]:
    free = sa.or_(_WORK.owner.is_(None), _WORK.lease_ms < db.now_ms())
    about_nothing = (
        sa.select(_WORK.kind, _WORK.key)
        .where(
            free,
            _WORK.wanted_ms < old,
            _WORK.kind.not_in(_OF_THE_CLOUD),
            *(~found for found in _names(_WORK.key)),
        )
        .order_by(_WORK.kind, _WORK.key)
    )
    yield "Work {}/{} is about nothing that there is.", about_nothing
    waited = (db.now_ms() - sa.func.min(_WORK.due_ms)) // 1000
    left_alone = (
        sa.select(_WORK.kind, sa.func.count(), waited)
        .where(free, _WORK.due_ms < old)
        .group_by(_WORK.kind)
        .order_by(_WORK.kind)
    )
    said = "No conductor does the work of kind {}: {} rows wait, for up to {} seconds."
    yield said, left_alone
    # Without work to send them, because no conductor is configured to send.
    count, has_work = sa.func.count(_NOTICE.id), sa.exists().where(_WORK.kind == notifications.KIND)
    unsent = sa.select(count).where(_NOTICE.occurred_ms < old, ~has_work).having(count > 0)
    said = f"give [{notifications.GROUP}] driver the same value for all services."
    yield f"No conductor sends notifications, and {{}} wait: {said}", unsent


def _names(key: orm.InstrumentedAttribute[str]) -> list[sa.Exists]:
    """Conditions that ``key`` names an object that there can be work for, or is its uuid."""
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
    fields = (_ARQ.hostname, _ARQ.device_rp_uuid, _ARQ.consumer_uuid)
    complete = sa.and_(*(field.is_not(None) for field in fields))
    bare = sa.and_(*(field.is_(None) for field in fields))
    query = sa.select(_ARQ.uuid, _ARQ.state).where(
        sa.or_(
            sa.and_(_ARQ.state == models.BOUND, sa.or_(~complete, _ARQ.attach_handle_id.is_(None))),
            sa.and_(_ARQ.state.in_({models.BIND_STARTED, models.BIND_FAILED}), ~complete),
            sa.and_(_ARQ.state.in_({models.INITIAL, models.UNBOUND}), ~bare),
            sa.and_(_ARQ.state.not_in(models.SERVING), _ARQ.attach_handle_id.is_not(None)),
            _ARQ.state == models.DELETING,
        )
    )
    yield "ARQ {} is {}, but its fields or its attach handle do not fit that.", query


def _wrong_handles() -> Iterator[_Rule]:
    """A handle that was left is nobody's, is known by whom, and has work; a clean one has none."""
    held = sa.exists().where(_ARQ.attach_handle_id == _HANDLE.id)
    works = sa.exists().where(_WORK.kind == work.HOST_STEP, _WORK.key == _HANDLE.uuid)
    known = sa.and_(_HANDLE.left_arq.is_not(None), _HANDLE.left_ms.is_not(None))
    noted = sa.or_(
        _HANDLE.left_arq.is_not(None),
        _HANDLE.left_ms.is_not(None),
        _HANDLE.left_reason.is_not(None),
        _HANDLE.needs_write,
    )
    wrong = sa.or_(
        sa.and_(_HANDLE.is_left, sa.or_(held, ~works, ~known)), sa.and_(~_HANDLE.is_left, noted)
    )
    query = sa.select(_HANDLE.uuid, _HANDLE.state).where(wrong)
    yield "Attach handle {} is {}, and its user, its fields or its work do not fit.", query


def _wrong_provider() -> Iterator[_Rule]:
    """An ARQ has a handle of the resource provider that it asked for."""
    query = (
        sa.select(_ARQ.uuid, _ARQ.device_rp_uuid, _DEPLOYABLE.rp_uuid)
        .join(_HANDLE, _HANDLE.id == _ARQ.attach_handle_id)
        .join(_DEPLOYABLE, _DEPLOYABLE.id == _HANDLE.deployable_id)
        .where(_ARQ.device_rp_uuid != _DEPLOYABLE.rp_uuid)
    )
    yield "ARQ {} asked for provider {} and has a handle of {}.", query


def _without_work() -> Iterator[_Rule]:
    """An ARQ in a state that must end has a row of work that ends it."""
    undecided = sa.and_(_ARQ.state == models.BIND_STARTED, _ARQ.attach_handle_id.is_(None))
    stepping = sa.and_(_ARQ.attach_handle_id.is_not(None), _ARQ.state == models.BIND_STARTED)
    bind, step = orm.aliased(models.Work), orm.aliased(models.Work)
    query = (
        sa.select(_ARQ.uuid, _ARQ.state)
        .outerjoin(_HANDLE, _HANDLE.id == _ARQ.attach_handle_id)
        .outerjoin(bind, sa.and_(bind.kind == work.BIND, bind.key == _ARQ.consumer_uuid))
        .outerjoin(step, sa.and_(step.kind == work.HOST_STEP, step.key == _HANDLE.uuid))
        .where(sa.or_(sa.and_(undecided, bind.id.is_(None)), sa.and_(stepping, step.id.is_(None))))
    )
    yield "ARQ {} is {}, and there is no work that would end that.", query


def _gone_but_kept() -> Iterator[_Rule]:
    """Vanished handles and deployables are kept only while an ARQ holds them, or not clean."""
    may_go = models.Device.kept_until_ms.is_(None)
    query = sa.select(_HANDLE.uuid).join(_HANDLE.deployable).join(_DEPLOYABLE.device)
    query = query.where(_HANDLE.missing.is_(True), ~_HANDLE.is_kept, may_go)
    yield "Attach handle {} has vanished from its host, is free, and is still kept.", query
    handles = sa.exists().where(_HANDLE.deployable_id == _DEPLOYABLE.id)
    child = orm.aliased(_DEPLOYABLE)
    children = sa.exists().where(child.parent_id == _DEPLOYABLE.id)
    empty = sa.select(_DEPLOYABLE.name).join(_DEPLOYABLE.device)
    empty = empty.where(_DEPLOYABLE.missing.is_(True), ~handles, ~children, may_go)
    yield "Deployable {} has vanished from its host, holds nothing, and is still kept.", empty


def _wrong_parent() -> Iterator[_Rule]:
    """A parent belongs to the same device; the root is the parent's root, or else the parent."""
    parent = orm.aliased(_DEPLOYABLE)
    top = sa.func.coalesce(parent.root_id, parent.id)
    query = (
        sa.select(_DEPLOYABLE.name)
        .outerjoin(parent, parent.id == _DEPLOYABLE.parent_id)
        .where(
            sa.or_(
                parent.device_id != _DEPLOYABLE.device_id,
                _DEPLOYABLE.root_id != top,
                _DEPLOYABLE.root_id.is_(None) != top.is_(None),
            )
        )
    )
    yield "Deployable {} has a parent that does not fit its device or its root.", query


def _removed_but_kept() -> Iterator[_Rule]:
    """A removed host has no devices, and something that deletes it once Placement is clean.

    That is work, or a provider that waits for its deletion.
    """
    device = sa.exists().where(models.Device.host_id == _HOST.id)
    wanted = sa.exists().where(models.Work.kind == work.PLACEMENT, models.Work.key == _HOST.name)
    provider = models.ResourceProvider
    waits = sa.exists().where(provider.host_id == _HOST.id, provider.detached_ms.is_not(None))
    lost = sa.or_(device, sa.and_(~wanted, ~waits))
    query = sa.select(_HOST.name).where(_HOST.removed.is_(True), lost)
    yield "Host {} was removed, but has devices, or no work that would forget it.", query


def _given_without_agent() -> Iterator[_Rule]:
    """A host without agent has devices, and nothing that could be given out."""
    deployable = sa.exists().where(
        models.Deployable.device_id == _DEVICE.id, _DEVICE.host_id == _HOST.id
    )
    provider = sa.exists().where(models.ResourceProvider.host_id == _HOST.id)
    has_any = sa.or_(deployable, provider, _HOST.drained, _HOST.tainted, _HOST.removed)
    query = sa.select(_HOST.name).where(_HOST.managed_by == models.IRONIC, has_any)
    yield "Host {} has no agent, and has something of what only agents' hosts have.", query


def _programs_without_work() -> Iterator[_Rule]:
    """An operation, or a deployable in doubt, has a row of work that ends it.

    A missing deployable that is in doubt has none: the report that shows it again makes the row.
    """
    unended = _OPERATION.active.is_not(None), ~_has_work(_OPERATION.active.expression)
    query = sa.select(_OPERATION.uuid).where(*unended)
    yield "Operation {} has not ended, and there is no work that would end it.", query
    query = sa.select(_DEPLOYABLE.name).where(
        ~models.Deployable.is_settled,
        _DEPLOYABLE.missing.is_(False),
        ~_has_work(_DEPLOYABLE.uuid.expression),
    )
    yield "Deployable {} is in doubt, and there is no work that would end that.", query


def _has_work(deployable_uuid: sa.ColumnElement[Any]) -> sa.Exists:
    return sa.exists().where(_WORK.kind == work.PROGRAM, _WORK.key == deployable_uuid)


def _wrong_end() -> Iterator[_Rule]:
    """An operation that has ended is not active, and any other is."""
    ended = _OPERATION.state.in_({operations.SUCCEEDED, operations.FAILED})
    query = sa.select(_OPERATION.uuid, _OPERATION.state).where(ended != _OPERATION.active.is_(None))
    yield "Operation {} is {}, which does not fit whether it has ended.", query


def _wrong_function(session: orm.Session) -> Iterator[Finding]:
    """A Bound ARQ's deployable runs the function that the ARQ asked for.

    It is not known what a deployable runs that is not programmed any more.
    """
    asks = sa.type_coerce(_ARQ.group, sa.Text).contains('"accel:')
    query = (
        sa.select(_ARQ, _DEPLOYABLE)
        .join(_HANDLE, _HANDLE.id == _ARQ.attach_handle_id)
        .join(_DEPLOYABLE, _DEPLOYABLE.id == _HANDLE.deployable_id)
        .where(
            _ARQ.state == models.BOUND,
            models.Deployable.is_settled,
            _DEPLOYABLE.program_mode.is_not(None),
            asks,
        )
    )
    for found, on in session.execute(query):
        what = program.of_group(found.request)
        if what and not what.is_run_by(on.record):
            said = f"ARQ {found.uuid} is Bound to {on.name}, which does not run {what}."
            yield Finding("database", said)


def _wrong_allocations() -> Iterator[_Rule]:
    """An allocation has all its ARQs, or none, or work; and no ARQ is of one that is not there."""
    mine = _ARQ.allocation_uuid == _ALLOCATION.uuid
    count, bound = (
        sa.select(sa.func.count(_ARQ.id)).where(mine, *where).scalar_subquery()
        for where in ((), (_ARQ.state == models.BOUND,))
    )
    whole = sa.and_(count == _ALLOCATION.accelerators, bound == _ALLOCATION.accelerators)
    right = sa.or_(
        sa.and_(_ALLOCATION.state == allocation_states.ACTIVE, whole),
        sa.and_(_ALLOCATION.state == allocation_states.FAILED, count == 0),
        sa.exists().where(models.Work.kind == work.ALLOCATE, models.Work.key == _ALLOCATION.uuid),
        # The end of these binds wants the work.
        sa.and_(
            _ALLOCATION.state == allocation_states.BINDING,
            sa.exists().where(mine, _ARQ.state == models.BIND_STARTED),
        ),
    )
    query = sa.select(_ALLOCATION.uuid, _ALLOCATION.state).where(~right)
    yield "Allocation {} is {}, its ARQs do not fit that, and no work would end it.", query
    is_there = sa.exists().where(_ALLOCATION.uuid == _ARQ.allocation_uuid)
    lost = sa.select(_ARQ.uuid, _ARQ.allocation_uuid)
    lost = lost.where(_ARQ.allocation_uuid.is_not(None), ~is_there)
    yield "ARQ {} is of allocation {}, which does not exist.", lost
