# SPDX-License-Identifier: Apache-2.0
"""What must be true of the database at any moment, whatever died: each check is one SELECT.

The schema itself sees to it that a handle is held by one ARQ at most. These checks are about what
constraints cannot say: that nothing waits for work that nobody wants any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, notifications, work
from cyborg.arqs import states
from cyborg.db import models
from cyborg.programming import operations, program

#: Seconds within which some conductor does what is wanted, or tries to, whichever of them dies.
DONE_WITHIN = 120

#: Kinds of work that have one row, whose key names nothing.
_OF_THE_CLOUD = frozenset({work.INSTANCES, notifications.KIND})


def violations() -> list[str]:
    """A sentence for each ARQ, handle or device that contradicts the rules; none where all is well.

    Read in one transaction, so that a change under way is seen whole or not at all.
    """
    with db.reader() as session:
        return [
            *_wrong_fields(session),
            *_wrong_provider(session),
            *_without_work(session),
            *_gone_but_kept(session),
            *_wrong_parent(session),
            *_removed_but_kept(session),
            *_programs(session),
        ]


def orphans(age: float = DONE_WITHIN) -> list[str]:
    """A sentence for each row of work that is about nothing, and for those that nobody takes.

    Only those that are wanted for ``age`` seconds: what is new has an end before it. The work of
    some kinds is about the whole cloud.
    """
    row = models.Work
    free = sa.or_(row.owner.is_(None), row.lease_ms < db.now_ms())
    old = db.now_ms() - round(age * 1000)
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
    left_alone = (
        sa.select(row.kind, sa.func.count(), db.now_ms() - sa.func.min(row.due_ms))
        .where(free, row.due_ms < old)
        .group_by(row.kind)
        .order_by(row.kind)
    )
    with db.reader() as session:
        return [
            *(
                f"Work {kind}/{key} is about nothing that there is."
                for kind, key in session.execute(about_nothing)
            ),
            *(
                f"No conductor does the work of kind {kind}: {count} rows wait, for up to "
                f"{waited_ms // 1000} seconds."
                for kind, count, waited_ms in session.execute(left_alone)
            ),
            *_unsent(session, old),
        ]


def _unsent(session: orm.Session, old: sa.ColumnElement[int]) -> Iterator[str]:
    """What is announced and wanted to be sent by no conductor, since none is configured to send."""
    row = models.Notification
    wanted = sa.exists().where(models.Work.kind == notifications.KIND)
    waits = sa.select(sa.func.count()).select_from(row).where(row.occurred_ms < old, ~wanted)
    if count := session.scalar(waits):
        yield (
            f"No conductor sends notifications, and {count} wait: give [{notifications.GROUP}] "
            "driver the same value for all services."
        )


def _names(key: orm.InstrumentedAttribute[str]) -> list[sa.Exists]:
    """Whether ``key`` is the name or the uuid of anything that work is done for."""
    columns = (
        models.Host.name,
        models.Arq.instance_uuid,
        models.Arq.uuid,
        models.AttachHandle.uuid,
        models.Deployable.uuid,
        models.Device.uuid,
        models.FunctionPool.uuid,
    )
    return [sa.exists().where(column == key) for column in columns]


def _wrong_fields(session: orm.Session) -> Iterator[str]:
    """A binding is complete, and what is no binding has none of its fields."""
    arq = models.Arq
    complete = sa.and_(
        arq.hostname.is_not(None), arq.device_rp_uuid.is_not(None), arq.instance_uuid.is_not(None)
    )
    bare = sa.and_(
        arq.hostname.is_(None), arq.device_rp_uuid.is_(None), arq.instance_uuid.is_(None)
    )
    query = sa.select(arq.uuid, arq.state).where(
        sa.or_(
            sa.and_(arq.state == states.BOUND, sa.or_(~complete, arq.attach_handle_id.is_(None))),
            sa.and_(arq.state.in_({states.BIND_STARTED, states.BIND_FAILED}), ~complete),
            sa.and_(
                arq.state == states.INITIAL, sa.or_(~bare, arq.attach_handle_id.is_not(None))
            ),
            sa.and_(arq.state == states.UNBOUND, ~bare),
            sa.and_(
                arq.state == states.DELETING,
                sa.or_(arq.instance_uuid.is_not(None), arq.attach_handle_id.is_(None)),
            ),
        )
    )
    for uuid, state in session.execute(query):
        yield f"ARQ {uuid} is {state}, but its fields or its attach handle do not fit that."


def _wrong_provider(session: orm.Session) -> Iterator[str]:
    arq, handle, deployable = models.Arq, models.AttachHandle, models.Deployable
    query = (
        sa.select(arq.uuid, arq.device_rp_uuid, deployable.rp_uuid)
        .join(handle, handle.id == arq.attach_handle_id)
        .join(deployable, deployable.id == handle.deployable_id)
        .where(arq.device_rp_uuid != deployable.rp_uuid)
    )
    for uuid, asked, given in session.execute(query):
        yield f"ARQ {uuid} asked for provider {asked} and has a handle of {given}."


def _without_work(session: orm.Session) -> Iterator[str]:
    """Whatever is not final has a row of work that will make it so."""
    arq, handle = models.Arq, models.AttachHandle
    undecided = sa.and_(arq.state == states.BIND_STARTED, arq.attach_handle_id.is_(None))
    stepping = sa.and_(
        arq.attach_handle_id.is_not(None), arq.state.not_in({states.BOUND, states.INITIAL})
    )
    bind, step = orm.aliased(models.Work), orm.aliased(models.Work)
    query = (
        sa.select(arq.uuid, arq.state)
        .outerjoin(handle, handle.id == arq.attach_handle_id)
        .outerjoin(bind, sa.and_(bind.kind == work.BIND, bind.key == arq.instance_uuid))
        .outerjoin(step, sa.and_(step.kind == work.HOST_STEP, step.key == handle.uuid))
        .where(
            sa.or_(sa.and_(undecided, bind.id.is_(None)), sa.and_(stepping, step.id.is_(None)))
        )
    )
    for uuid, state in session.execute(query):
        yield f"ARQ {uuid} is {state}, and there is no work that would end that."


def _gone_but_kept(session: orm.Session) -> Iterator[str]:
    """What vanished from its host is kept for an ARQ that holds it, and for nothing else."""
    arq, handle, deployable = models.Arq, models.AttachHandle, models.Deployable
    free = ~sa.exists().where(arq.attach_handle_id == handle.id)
    query = sa.select(handle.uuid).where(handle.missing.is_(True), free)
    for (uuid,) in session.execute(query):
        yield f"Attach handle {uuid} has vanished from its host, is free, and is still kept."
    handles = sa.exists().where(handle.deployable_id == deployable.id)
    child = orm.aliased(deployable)
    children = sa.exists().where(child.parent_id == deployable.id)
    empty = sa.select(deployable.name).where(deployable.missing.is_(True), ~handles, ~children)
    for (name,) in session.execute(empty):
        yield f"Deployable {name} has vanished from its host, holds nothing, and is still kept."


def _wrong_parent(session: orm.Session) -> Iterator[str]:
    """A parent is of the same device, and the root is that of the parent, or the parent."""
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
    for (name,) in session.execute(query):
        yield f"Deployable {name} has a parent that does not fit its device or its root."


def _removed_but_kept(session: orm.Session) -> Iterator[str]:
    """A host that was removed has nothing, and goes when Placement has nothing of it either."""
    host = models.Host
    device = sa.exists().where(models.Device.host_id == host.id)
    wanted = sa.exists().where(models.Work.kind == work.PLACEMENT, models.Work.key == host.name)
    query = sa.select(host.name).where(host.removed.is_(True), sa.or_(device, ~wanted))
    for (name,) in session.execute(query):
        yield f"Host {name} was removed, but has devices, or no work that would forget it."


def _programs(session: orm.Session) -> Iterator[str]:
    """A sentence for each deployable, operation or guest that contradicts the rules."""
    yield from _programs_without_work(session)
    yield from _wrong_end(session)
    yield from _wrong_function(session)


def _programs_without_work(session: orm.Session) -> Iterator[str]:
    """Whatever is being programmed has a row of work that will end it.

    What is away meanwhile is wanted by the report that shows it again.
    """
    deployable, operation = models.Deployable, models.Operation
    running = operation.active.is_not(None)
    for (uuid,) in session.execute(
        sa.select(operation.uuid).where(running, ~_is_wanted(operation.active.expression))
    ):
        yield f"Operation {uuid} has not ended, and there is no work that would end it."
    for (name,) in session.execute(
        sa.select(deployable.name).where(
            ~deployable.is_settled,
            deployable.missing.is_(False),
            ~_is_wanted(deployable.uuid.expression),
        )
    ):
        yield f"Deployable {name} is in doubt, and there is no work that would end that."


def _is_wanted(deployable_uuid: sa.ColumnElement[Any]) -> sa.Exists:
    row = models.Work
    return sa.exists().where(row.kind == work.PROGRAM, row.key == deployable_uuid)


def _wrong_end(session: orm.Session) -> Iterator[str]:
    operation = models.Operation
    ended = operation.state.in_({operations.SUCCEEDED, operations.FAILED})
    query = sa.select(operation.uuid, operation.state).where(
        ended != operation.active.is_(None)
    )
    for uuid, state in session.execute(query):
        yield f"Operation {uuid} is {state}, which does not fit whether it has ended."


def _wrong_function(session: orm.Session) -> Iterator[str]:
    """A guest has the function that it asked for, as long as it has the handle.

    What a deployable runs that is not programmed any more is not known here.
    """
    arq, handle, deployable = models.Arq, models.AttachHandle, models.Deployable
    asks = sa.type_coerce(arq.group, sa.Text).contains('"accel:')
    query = (
        sa.select(arq, deployable)
        .join(handle, handle.id == arq.attach_handle_id)
        .join(deployable, deployable.id == handle.deployable_id)
        .where(
            arq.state == models.BOUND,
            deployable.is_settled,
            deployable.program_mode.is_not(None),
            asks,
        )
    )
    for found, on in session.execute(query):
        what = program.of_group(found.group)
        if what and not what.is_run_by(on):
            yield f"ARQ {found.uuid} is Bound to {on.name}, which does not run {what}."
