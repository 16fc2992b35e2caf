# SPDX-License-Identifier: Apache-2.0
"""Operations: each request to program a deployable, from the request to its end.

One table says what may follow each state of an operation, and every change is a guarded UPDATE.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, history, notifications, work
from cyborg.common import errors, reasons
from cyborg.common.reasons import Reader, Reason, shown
from cyborg.db import models, paging
from cyborg.db.providers import ProviderRow
from cyborg.notifications import notices
from cyborg.programming import layouts, program, states, using_arqs

LOG = logging.getLogger(__name__)

#: Asked for; its inventory is being withdrawn; it is being written; the two ends.
QUEUED = "queued"
RESERVING = "reserving"
WRITING = "writing"
SUCCEEDED = "succeeded"
FAILED = "failed"

STATES = (QUEUED, RESERVING, WRITING, SUCCEEDED, FAILED)

#: What may follow each state. A write ends only when the host has said how; what a guest has lost
#: is written again until that succeeds.
_FOLLOWS: Mapping[str, Collection[str]] = {
    QUEUED: {RESERVING, SUCCEEDED, FAILED},
    RESERVING: {WRITING, SUCCEEDED, FAILED},
    WRITING: {SUCCEEDED, FAILED, RESERVING},
    SUCCEEDED: (),
    FAILED: (),
}

#: Why an operation failed: the deployable is in use; an administrator has taken it back; the
#: request cannot be carried out; the host failed.
CONFLICT = "conflict"
CANCELLED = "cancelled"
INVALID = "invalid"
BROKEN = "failed"

_NOT_READY = reasons.NOT_READY

#: What the ARQ's project may read of a conflict, which names ARQs of other projects.
_IN_USE = "it is in use."

#: What is read of the error of one that failed by who may not see hosts.
NOT_DONE = reasons.OF_BINDS[reasons.NOT_READY]

#: ``asked_by`` of an operation that restores what the hardware has lost.
RECOVERY = "recovery"

#: The same of one that overwrites what guests have left.
CLEANING = "cleaning"

_FAULTS: Mapping[str, type[errors.CyborgError]] = {
    CONFLICT: errors.Conflict,
    CANCELLED: errors.Conflict,
    INVALID: errors.Invalid,
    BROKEN: errors.HostFailed,
}


class CannotRun(errors.CyborgError):
    """The deployable will not run what an ARQ asks for, for a ``reason``."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.whole)
        self.reason = reason


class Undecided(errors.Conflict):
    """An operation may be for the same program: the image that it asks for is not known yet."""


#: Seconds between two looks at an operation that a request waits for.
_POLL = 0.5

#: How many entries of its history an operation keeps: the last ones.
_HISTORY_MAX = 100

_ENDS = {SUCCEEDED: notices.OPERATION_SUCCEEDED, FAILED: notices.OPERATION_FAILED}

#: How many ended operations are deleted at once.
_BATCH = 500

_MODEL = models.Operation

#: Columns by which a list may be sorted and narrowed; the names are those of the REST API.
COLUMNS = paging.columns(
    _MODEL,
    *("id", "uuid", "deployable_uuid", "state", "instance_uuid", "created_at", "ended_at"),
    instance_uuid=_MODEL.consumer_uuid,
    ended_at=_MODEL.ended_ms,
)


def list_operations(
    page: paging.Page = paging.ALL, **narrowed: str
) -> list[models.Operation]:
    """Operations, only those that have the values ``narrowed``. From one SELECT.

    :raises Invalid: operations cannot be sorted by that key, or there is no such marker
    """
    with db.reader() as session:
        return paging.fetch(session, sa.select(_MODEL), COLUMNS, page, narrowed)


def get_operation(uuid: str) -> models.Operation:
    """The operation of that uuid.

    :raises NotFound: there is none
    """
    with db.reader() as session:
        return paging.get(session, sa.select(_MODEL), COLUMNS, "Operation", uuid=uuid)


@db.retry
def ask(
    deployable_uuid: str, what: program.Program, asked_by: str, *, is_layout: bool = False
) -> models.Operation:
    """Record that a deployable is to run a program; ``is_layout``: its function is a layout.

    The operation that is returned has ended already if the deployable runs the program, and may be
    an older one for the same program.

    :raises NotFound: there is no such deployable
    :raises NotOffered: its driver does not program it
    :raises Invalid: that is no layout of it, or it has no layouts
    :raises Conflict: it is in use, or is being programmed with something else
    :raises Undecided: it may be being programmed with the same, which only Glance knows
    """
    with db.writer() as session:
        deployable = lock(session, deployable_uuid)
        if deployable is None:
            raise errors.NotFound.of("Deployable", uuid=deployable_uuid)
        if is_layout:
            layouts.refuse_image(deployable)
        layouts.refuse(session, deployable, what)
        return request(session, deployable, what, asked_by=asked_by)


@db.retry
def have_programmed(item: work.Item, arq: models.Arq, deployable_uuid: str) -> bool:
    """Whether the deployable runs what the BindStarted ARQ asks for; if not, have it programmed.

    :raises CannotRun: it cannot be programmed so, or programming has failed for this bind
    """
    instance = arq.consumer_uuid
    if not arq.request.names_program or instance is None:
        return True
    with db.writer() as session:
        # The end of programming locks both in the same order.
        deployable = lock(session, deployable_uuid)
        work.hold(session, item)
        if deployable is None:
            raise CannotRun(Reason(_NOT_READY, "The deployable is gone from its host."))
        what = program.lacking(arq.request, deployable.record)
        if what is None:
            return True
        if layouts.is_layout(deployable.record):
            raise CannotRun(Reason(_NOT_READY, f"It has another layout than {what}."))
        last = _last_for(session, deployable_uuid, arq)
        if last is not None and last.state == FAILED:
            LOG.info("ARQ %s cannot have its program: %s", arq.uuid, last.error)
            reason = _IN_USE if last.fault == CONFLICT else last.error
            sentence = f"It could not be programmed with {what}"
            raise CannotRun(Reason.of(_NOT_READY, sentence, reason))
        asked_by = f"instance {instance}"
        try:
            request(session, deployable, what, asked_by=asked_by, consumer_uuid=instance)
        except errors.NotOffered as exc:
            raise CannotRun(Reason(_NOT_READY, exc.message)) from exc
        except Undecided:
            return False
        except errors.Conflict as exc:
            LOG.info("ARQ %s cannot have its program: %s", arq.uuid, exc)
            other = active_on(session, deployable_uuid) is not None
            reason = "it is being programmed with something else." if other else _IN_USE
            sentence = f"Deployable {deployable_uuid} cannot be programmed"
            raise CannotRun(Reason.of(_NOT_READY, sentence, reason)) from exc
    return False


def _last_for(
    session: orm.Session, deployable_uuid: str, arq: models.Arq
) -> models.Operation | None:
    """The latest operation for a bind that has ended since the bind began."""
    query = (
        sa.select(_MODEL)
        .where(
            _MODEL.deployable_uuid == deployable_uuid,
            _MODEL.consumer_uuid == arq.consumer_uuid,
            _MODEL.ended_ms >= (arq.bind_started_ms or 0),
        )
        .order_by(_MODEL.id.desc())
        .limit(1)
    )
    return session.scalar(query)


def wait(reader: Reader, uuid: str, seconds: float) -> None:
    """Block until the operation has succeeded; the ``reader`` is told if it has not.

    :raises ServiceUnavailable: it has not ended after ``seconds``, or failed and is tried again
    :raises Conflict, Invalid, HostFailed: it has failed
    """
    deadline = time.monotonic() + seconds
    while True:
        operation = get_operation(uuid)
        if operation.state == SUCCEEDED:
            return
        if operation.state == FAILED:
            raise _FAULTS[operation.fault or BROKEN](
                f"Operation {uuid} on deployable {operation.deployable_uuid} failed: "
                f"{shown(reader, NOT_DONE, operation.error)}"
            )
        if operation.error is not None:
            raise errors.ServiceUnavailable(
                f"Operation {uuid} on deployable {operation.deployable_uuid} is tried again and "
                f"again: {shown(reader, NOT_DONE, operation.error)}"
            )
        if time.monotonic() >= deadline:
            raise errors.ServiceUnavailable(
                f"The deployable is not programmed after {seconds:.0f} s; operation {uuid} goes "
                "on, see GET /v2/operations from 2.4 on."
            )
        time.sleep(_POLL)


def lock(session: orm.Session, deployable_uuid: str) -> models.Deployable | None:
    """The deployable, on which nobody else decides anything until the transaction ends."""
    query = sa.select(models.Deployable).where(models.Deployable.uuid == deployable_uuid)
    query = query.with_for_update().execution_options(populate_existing=True)
    return session.scalar(query)


def request(
    session: orm.Session,
    deployable: models.Deployable,
    what: program.Program,
    *,
    asked_by: str,
    consumer_uuid: str | None = None,
    pool_uuid: str | None = None,
) -> models.Operation:
    """Make the operation that has a locked deployable run a program; see :func:`ask`.

    The caller has seen that it is a layout of a deployable that has layouts.
    """
    if deployable.program_mode is None:
        raise errors.NotOffered(
            f"Deployable {deployable.uuid} cannot be programmed: driver {deployable.driver_name} "
            "does not say that it can."
        )
    present = active_on(session, deployable.uuid)
    if present is None and not deployable.is_settled:
        # A report showed that its program is lost; nothing else is written until it is back.
        present = recover(session, deployable)
        work.want(session, work.PROGRAM, [deployable.uuid])
    if present is not None:
        _join(present, deployable, what)
        if pool_uuid is None:
            _note_joined(session, present, asked_by, consumer_uuid)
        return present
    made = _new(session, deployable, what, asked_by)
    made.consumer_uuid, made.pool_uuid = consumer_uuid, pool_uuid
    record = deployable.record
    runs, may_run = what.is_run_by(record), what.may_be_run_by(record)
    if runs:
        made.active, made.state, made.ended_ms = None, SUCCEEDED, made.asked_ms
        made.history = [_entry(made.asked_ms, f"The deployable runs {what} already.")]
    else:
        why_not = using_arqs.why_not(session, deployable, what)
        if why_not and not may_run:
            raise errors.Conflict(f"Deployable {deployable.uuid} cannot be programmed: {why_not}")
        work.want(session, work.PROGRAM, [deployable.uuid])
    return _insert(session, made)


def recover(session: orm.Session, deployable: models.Deployable) -> models.Operation:
    """Make the operation that writes again what a locked deployable has lost.

    If it is not known which image it was, any image of the same function is written.
    """
    what = program.Program(image_uuid=deployable.bitstream_id)
    what = what or program.recorded(deployable.record)
    return _insert(session, _new(session, deployable, what, RECOVERY))


def overwrite(
    session: orm.Session,
    deployable: models.Deployable,
    what: program.Program,
    pool: models.FunctionPool | None,
) -> models.Operation:
    """Make the operation that writes a program over whatever a locked, settled deployable runs.

    The caller has seen that it has no operation and that nobody has it. ``pool`` is the function
    pool whose program it is; without one, it is the blank image.
    """
    made = _new(session, deployable, what, CLEANING)
    made.pool_uuid = pool.uuid if pool is not None else None
    work.want(session, work.PROGRAM, [deployable.uuid])
    return _insert(session, made)


def _new(
    session: orm.Session, deployable: models.Deployable, what: program.Program, asked_by: str
) -> models.Operation:
    asked_ms = now(session)
    return models.Operation(
        uuid=models.new_uuid(),
        deployable_uuid=deployable.uuid,
        active=deployable.uuid,
        image_uuid=what.image_uuid,
        image_name=what.image_name,
        function_id=what.function_id,
        function_name=what.function_name,
        asked_by=asked_by,
        asked_ms=asked_ms,
        state=QUEUED,
        history=[_entry(asked_ms, f"Asked for {what} by {asked_by}.")],
    )


def _insert(session: orm.Session, made: models.Operation) -> models.Operation:
    session.add(made)
    with db.restarting():
        session.flush()
    events = [notices.OPERATION_CREATED]
    if made.state == SUCCEEDED:
        events.append(notices.OPERATION_SUCCEEDED)
    notifications.announce(
        session,
        (notices.of_operation(each, made, state=made.state, error=None) for each in events),
    )
    return made


def _join(
    present: models.Operation,
    deployable: models.Deployable,
    what: program.Program,
) -> None:
    its = _will_run(present, deployable.record)
    if its.agrees(what):
        return
    unknown = present.image is None and not its.contradicts(what)
    kind = Undecided if unknown else errors.Conflict
    raise kind(
        f"Deployable {deployable.uuid} is being programmed with {its}, by operation "
        f"{present.uuid}; wait for its end."
    )


def _note_joined(
    session: orm.Session, present: models.Operation, asked_by: str, consumer_uuid: str | None
) -> None:
    """Note once who wants an operation too that may still be given up if its asker leaves."""
    is_begun = present.state == WRITING or present.asked_by == RECOVERY
    if is_begun or asked_by in {present.asked_by, *(who for who, _ in _joined(present))}:
        return
    entry = _entry(now(session), f"Asked for by {asked_by} too.")
    entry |= {"joined": asked_by, "consumer_uuid": consumer_uuid}
    changed = [*present.history, entry][-_HISTORY_MAX:]
    guard_ = (_MODEL.id == present.id, _MODEL.state == present.state)
    if not db.update(session, _MODEL, *guard_, history=changed):
        raise db.RestartTransaction


def _joined(operation: models.Operation) -> list[tuple[str, str | None]]:
    """Who wants an operation besides who asked for it first, and the instance if it is one."""
    return [
        (entry["joined"], entry["consumer_uuid"])
        for entry in operation.history
        if "joined" in entry
    ]


def is_for_binds(operation: models.Operation) -> bool:
    """Whether only binds want the operation, so that it is for nobody once none waits."""
    has_others = any(instance is None for _, instance in _joined(operation))
    return operation.consumer_uuid is not None and not has_others


def instances(operation: models.Operation) -> set[str]:
    """The instances whose binds have asked for an operation; they may have left since."""
    asked = [operation.consumer_uuid, *(instance for _, instance in _joined(operation))]
    return {instance for instance in asked if instance is not None}


def _will_run(operation: models.Operation | None, record: models.ProgramRecord) -> program.Program:
    """What a deployable will run after that operation, if any; what it has lost is restored."""
    if operation is None or operation.asked_by == RECOVERY:
        return program.recorded(record)
    return program.of_operation(operation)


def will_run(
    session: orm.Session, deployables: Iterable[ProviderRow]
) -> dict[str, program.Program]:
    """What those of the deployables that are not settled will run soon, by their uuids.

    One whose operation is tried again is not among them: that may take any time.
    """
    unsettled = {each.uuid: each for each in deployables if not each.record.is_settled}
    if not unsettled:
        return {}
    query = sa.select(_MODEL).where(_MODEL.active.in_(unsettled))
    active = {found.active: found for found in session.scalars(query)}
    return {
        uuid: _will_run(operation, each.record)
        for uuid, each in unsettled.items()
        if (operation := active.get(uuid)) is None or operation.error is None
    }


def fills_pool(operation: models.Operation) -> bool:
    """Whether the operation fills a function pool, and does not overwrite what a guest left."""
    return operation.pool_uuid is not None and operation.asked_by != CLEANING


def is_queued_by_pool() -> sa.ColumnElement[bool]:
    """:func:`fills_pool` in SQL, of operations that have not begun to write."""
    return sa.and_(
        _MODEL.pool_uuid.is_not(None),
        _MODEL.asked_by != CLEANING,
        _MODEL.state.in_([QUEUED, RESERVING]),
    )


def active_on(session: orm.Session, deployable_uuid: str) -> models.Operation | None:
    """The operation on a deployable that has not ended."""
    return session.scalar(sa.select(_MODEL).where(_MODEL.active == deployable_uuid))


def being_written(session: orm.Session, deployable_ids: Collection[int]) -> set[int]:
    """Those of the deployables that an operation has begun to write, and has not ended."""
    if not deployable_ids:
        return set()
    row = models.Deployable
    query = sa.select(row.id).join(_MODEL, _MODEL.active == row.uuid)
    query = query.where(row.id.in_(deployable_ids), _MODEL.state == WRITING)
    return set(session.scalars(query))


def move(
    session: orm.Session,
    operation: models.Operation,
    state: str,
    text: str,
    *,
    change: tuple[models.Deployable, states.ProgramEvent] | None = None,
    runs: Mapping[str, Any] = MappingProxyType({}),
    **values: Any,
) -> None:
    """Bring an operation to its next state.

    ``change`` is what this means for the program of a locked deployable, if anything, and ``runs``
    the columns of what it runs then; see :func:`states.change`.

    :raises LeaseLost: somebody else has moved it
    """
    if state not in _FOLLOWS[operation.state]:
        raise AssertionError(f"{state} does not follow {operation.state}")
    at_ms = now(session)
    if state in {SUCCEEDED, FAILED}:
        values |= {"active": None, "ended_ms": at_ms}
    values["history"] = [*operation.history, _entry(at_ms, text)][-_HISTORY_MAX:]
    guard_ = (_MODEL.id == operation.id, _MODEL.state == operation.state)
    if not db.update(session, _MODEL, *guard_, state=state, **values):
        raise work.LeaseLost(f"operation {operation.uuid}")
    if change is not None:
        states.change(session, *change, **runs)
    if operation.state == WRITING and state in {SUCCEEDED, FAILED}:
        history.write(session, [_history_entry(operation, values)])
    if event := _ENDS.get(state):
        notice = notices.of_operation(event, operation, state=state, error=values.get("error"))
        notifications.announce(session, [notice])
    if state == SUCCEEDED and operation.pool_uuid is not None:
        # It may want another one now.
        work.want(session, work.FUNCTION_POOL, [operation.pool_uuid])
    said = (operation.uuid, operation.deployable_uuid, state, text)
    log = LOG.warning if state == FAILED else LOG.info
    db.after_commit(session, lambda: log("Operation %s on deployable %s is %s: %s", *said))


def _history_entry(operation: models.Operation, values: dict[str, Any]) -> dict[str, Any]:
    """The entry of the history for an operation that ends with these values."""
    what = program.of_operation(operation)
    return {
        "kind": history.PROGRAMMED,
        # Its owner reads that it was done, or failed, for the instance.
        "project_id": history.project_of_instance(operation.consumer_uuid),
        "device_uuid": history.device_of_deployable(operation.deployable_uuid),
        "hostname": history.host_of_deployable(operation.deployable_uuid),
        "consumer_uuid": operation.consumer_uuid,
        "image_uuid": what.image_uuid,
        "function_id": what.function_id,
        "reason": NOT_DONE if values.get("error") else None,
        "private_reason": values.get("error"),
        "actor": operation.asked_by,
        "started_ms": operation.asked_ms,
        "ended_ms": values["ended_ms"],
    }


def note(session: orm.Session, operation: models.Operation, error: str) -> None:
    """Keep why an operation could not be carried out that is tried again.

    :raises LeaseLost: somebody else has moved it
    """
    guard_ = (_MODEL.id == operation.id, _MODEL.state == operation.state)
    if not db.update(session, _MODEL, *guard_, error=error):
        raise work.LeaseLost(f"operation {operation.uuid}")
    LOG.warning("Operation %s is tried again: %r", operation.uuid, error)


def note_wait(session: orm.Session, operation: models.Operation, reason: str) -> None:
    """Note at the end of a locked operation's history what it waits for."""
    # What is tried again says so in its error.
    if operation.error is None:
        past = operation.history
        before = past[:-1] if "waits" in past[-1] else past
        entry = _entry(now(session), f"It waits: {reason}") | {"waits": True}
        history = [*before, entry][-_HISTORY_MAX:]
        db.update(session, _MODEL, _MODEL.id == operation.id, history=history)


def last_entry(operation: models.Operation) -> str:
    """What has happened last to an operation."""
    return str(operation.history[-1]["text"])


def _entry(at_ms: int, text: str) -> dict[str, Any]:
    return {"at_ms": at_ms, "text": text}


def now(session: orm.Session) -> int:
    """The database's clock."""
    return int(session.execute(sa.select(db.now_ms())).scalar_one())


def moment(milliseconds: int) -> datetime.datetime:
    """A time of the database's clock as answers show it: UTC without a zone."""
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC).replace(tzinfo=None)


def forget(conf: cfg.ConfigOpts) -> None:
    """Delete some of the operations that ended ``[programming] operation_expiry`` seconds ago."""
    seconds = conf.programming.operation_expiry
    if seconds:
        old = _MODEL.ended_ms < db.now_ms() - seconds * 1000
        db.change_due(_MODEL, old, limit=_BATCH, change=_delete)


def _delete(session: orm.Session, ended: list[models.Operation]) -> None:
    db.delete(session, _MODEL, _MODEL.id.in_([operation.id for operation in ended]))
