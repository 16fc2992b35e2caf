# SPDX-License-Identifier: Apache-2.0
"""How one operation goes on: each function is a transaction that brings it to its next state.

Each holds the piece of work and locks the deployable first, so that what it decides is decided by
nobody else meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import arq_states, db, errors, glance, rpc, work
from cyborg.db import models
from cyborg.programming import guard, image_match, operations, program, record

_GONE = "The deployable is gone from its host."


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A deployable as it is, and the operation on it that has not ended."""

    deployable: models.Deployable
    device: models.Device
    control_path: models.ControlPath
    attributes: list[models.Attribute]
    handles: list[models.AttachHandle]
    host: models.Host
    operation: models.Operation
    now_ms: int


class Refused(errors.CyborgError):
    """The operation cannot be carried out, and nothing has been written."""

    def __init__(self, fault: str, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@db.retry
def read(claim: work.Claim) -> Situation | None:
    """What is to be done; None where nothing is.

    A deployable that is in doubt without an operation has lost its program, and gets one.
    """
    with db.writer() as session:
        work.hold(session, claim)
        deployable = operations.lock(session, claim.key)
        operation = operations.active_on(session, claim.key)
        if deployable is None or (deployable.missing and not _is_written(operation)):
            if operation is not None:
                _end_gone(_Held(session, deployable, operation))
            return None
        if operation is None and deployable.in_doubt:
            operation = _recovery(session, deployable)
        if operation is None:
            return None
        held = _Held(session, deployable, operation)
        if operation.state == operations.QUEUED and _has_ended(held):
            return None
        return _situation(session, deployable, operation)


def _is_written(operation: models.Operation | None) -> bool:
    """Whether the host is at it, or was; some cards leave the bus while they are written."""
    return operation is not None and operation.state == operations.WRITING


def _end_gone(held: _Held) -> None:
    session, deployable = held.session, held.deployable
    lost = held.operation.asked_by == operations.RECOVERY or held.has_lost_before()
    held.move(operations.FAILED, _GONE, error=_GONE, fault=operations.BROKEN)
    if deployable is None:
        return
    if lost:
        # It stays in doubt, and gets a recovery when a report shows it again.
        record.read_reports_anew(session, deployable)
    else:
        record.certain(session, deployable)
    record.tell_placement(session, deployable)


def _recovery(session: orm.Session, row: models.Deployable) -> models.Operation | None:
    """The operation that writes again what the hardware has lost while guests have it."""
    if not program.of_deployable(row):
        record.runs(session, row, image_uuid=None, function_id=None)
        record.tell_placement(session, row)
        return None
    return operations.recover(session, row)


def _situation(
    session: orm.Session, deployable: models.Deployable, operation: models.Operation
) -> Situation:
    device, host, path = models.Device, models.Host, models.ControlPath
    query = (
        sa.select(device, path, host, db.now_ms())
        .join(path, path.device_id == device.id)
        .join(host, host.id == device.host_id)
        .where(device.id == deployable.device_id)
    )
    found = session.execute(query).one()
    handle, attribute = models.AttachHandle, models.Attribute
    # All of them while it is away, so that the host is asked for the same again.
    shown = sa.or_(handle.missing.is_(False), sa.literal(deployable.missing))
    handles = sa.select(handle).where(handle.deployable_id == deployable.id, shown)
    attributes = sa.select(attribute).where(attribute.deployable_id == deployable.id)
    return Situation(
        deployable=deployable,
        device=found[0],
        control_path=found[1],
        attributes=list(session.scalars(attributes)),
        handles=list(session.scalars(handles.order_by(handle.id))),
        host=found[2],
        operation=operation,
        now_ms=found[3],
    )


@dataclass(frozen=True, slots=True)
class _Held:
    """What a transaction has locked."""

    session: orm.Session
    deployable: models.Deployable | None
    operation: models.Operation

    def move(self, state: str, text: str, **values: Any) -> None:
        operations.move(self.session, self.operation, state, text, **values)

    def end_badly(self, reason: str, fault: str, *, written: bool = True) -> bool:
        """End the operation, unless it is to put back what a guest has: False then."""
        if self.is_needless() or self.operation.asked_by != operations.RECOVERY:
            self.move(operations.FAILED, reason, error=reason, fault=fault)
            return True
        if self.operation.state != operations.WRITING:
            operations.note(self.session, self.operation, reason)
            return False
        text, now = f"{reason} It is tried again.", fault if written else self.operation.fault
        self.move(operations.RESERVING, text, error=reason, fault=now)
        if written:
            record.contradict(self.session, self.deployable)
        return False

    def has_lost_before(self) -> bool:
        """Whether a report, and not the operation, has put the deployable in doubt."""
        asked_only = self.operation.state == operations.QUEUED
        recovers = self.operation.asked_by == operations.RECOVERY
        in_doubt = self.deployable is not None and self.deployable.in_doubt
        return asked_only and in_doubt and not recovers

    def is_needless(self) -> bool:
        """Whether it is to put back what no guest has any more."""
        recovers = self.operation.asked_by == operations.RECOVERY
        return recovers and not (
            self.deployable is not None and guard.is_used(self.session, self.deployable)
        )

    def is_back(self) -> bool:
        """Whether the hardware shows again what was lost, and nothing has been written since."""
        # An operation that goes on has a fault where something may have been written.
        row, recovers = self.deployable, self.operation.asked_by == operations.RECOVERY
        if row is None or not recovers or self.operation.fault is not None:
            return False
        return row.in_doubt and not row.contradicted

    def tell(self) -> None:
        """Have Placement and the binds that wait for the deployable look at it again."""
        if self.deployable is not None:
            record.tell_placement(self.session, self.deployable)
            record.tell_binds(self.session, self.deployable)


def _hold(session: orm.Session, claim: work.Claim) -> _Held:
    work.hold(session, claim)
    deployable = operations.lock(session, claim.key)
    operation = operations.active_on(session, claim.key)
    if operation is None:
        raise work.LeaseLost(f"{claim.kind}/{claim.key}")
    return _Held(session, deployable, operation)


@db.retry
def withdraw(claim: work.Claim, image: glance.Image) -> bool:
    """Put the deployable in doubt, to be written; False where it runs the image already.

    :raises Refused: somebody has it
    """
    with db.writer() as session:
        held = _hold(session, claim)
        deployable, operation = held.deployable, held.operation
        if deployable is None:
            raise Refused(operations.BROKEN, _GONE)
        if deployable.program_mode is None:
            raise Refused(operations.INVALID, "Its driver does not program it any more.")
        what = program.of_operation(operation)
        if image_match.is_run(image, what, deployable):
            if what.function_name is not None and deployable.function_name is None:
                deployable.function_name = what.function_name
            held.move(operations.SUCCEEDED, f"The deployable runs {what} already.")
            held.tell()
            return False
        if operation.asked_by != operations.RECOVERY:
            by = guard.holder(held.session, deployable, what)
            if by:
                raise Refused(operations.CONFLICT, by)
            if operation.instance_uuid and not guard.awaiting(held.session, operation):
                raise Refused(operations.CONFLICT, "Nobody waits for it any more.")
        record.doubt(held.session, deployable)
        text = f"Image {image.uuid} is to be written; the inventory is being withdrawn."
        held.move(operations.RESERVING, text, image=_kept(image))
        record.tell_placement(held.session, deployable)
        return True


@db.retry
def put_back(claim: work.Claim) -> bool:
    """Have a deployable that has lost its program written as it was, without asking Glance again.

    False where it is not known how it was written.
    """
    with db.writer() as session:
        held = _hold(session, claim)
        deployable, operation = held.deployable, held.operation
        image = deployable.bitstream if deployable is not None else None
        if deployable is None or not image or image["uuid"] != operation.image_uuid:
            return False
        record.doubt(held.session, deployable)
        text = f"Image {image['uuid']} is to be written again; the inventory is being withdrawn."
        held.move(operations.RESERVING, text, image=image)
        record.tell_placement(held.session, deployable)
        return True


def _kept(image: glance.Image) -> dict[str, Any]:
    """What of an image is needed until it is written, whatever becomes of it in Glance."""
    if image.digest is None or image.size is None:
        raise Refused(
            operations.INVALID, f"Image {image.uuid} has no checksum by which to verify its data."
        )
    return {
        "uuid": image.uuid,
        "size": image.size,
        "hash_algo": image.digest[0],
        "hash_value": image.digest[1],
        "function_id": image.function_id,
        "function_name": image.function_name,
        "signature": dict(image.signature),
    }


def awaiting(claim: work.Claim) -> set[str]:
    """The instances that wait for what is about to be written."""
    with db.reader() as session:
        operation = operations.active_on(session, claim.key)
        return set() if operation is None else guard.awaiting(session, operation)


@db.retry
def begin_to_write(claim: work.Claim) -> bool:
    """Note that from now on only the host can say what the deployable runs.

    False where the operation was to put back what nobody has any more, or what is back; that ends
    it.
    """
    with db.writer() as session:
        held = _hold(session, claim)
        if _has_ended(held):
            return False
        recovers = held.operation.asked_by == operations.RECOVERY
        text = "It is being written again." if recovers else "Nobody has it; it is being written."
        held.move(operations.WRITING, text)
        return True


def _has_ended(held: _Held) -> bool:
    """End an operation that was to put back what need not be put back; False where it must be."""
    if held.deployable is not None and held.is_back():
        text = "The hardware shows it again; nothing was written."
        held.move(operations.SUCCEEDED, text, error=None)
        record.certain(held.session, held.deployable)
        held.tell()
        return True
    if held.is_needless():
        held.end_badly("No guest has it any more.", operations.CONFLICT)
        _leave_as_it_was(held)
        return True
    return False


@db.retry
def refuse(claim: work.Claim, refusal: Refused) -> None:
    """End the operation before anything was written: the deployable is what it was.

    :raises TryLater: a guest still has what it was to put back
    """
    reason = str(refusal)
    with db.writer() as session:
        held = _hold(session, claim)
        lost = held.has_lost_before()
        ended = held.end_badly(reason, refusal.fault)
        if lost:
            work.want(session, work.PROGRAM, [claim.key])
            held.tell()
        elif ended:
            _leave_as_it_was(held)
    if not ended:
        raise _again(reason)


@db.retry
def end_failed(
    claim: work.Claim, situation: Situation, failure: rpc.ProgramFailed, *, unchanged: bool
) -> None:
    """End an operation whose host could not do it; ``unchanged``: not a byte was written.

    :raises TryLater: a guest still has what it was to put back
    """
    reason = str(failure)
    with db.writer() as session:
        held = _hold(session, claim)
        ended = held.end_badly(reason, operations.BROKEN, written=not unchanged)
        if failure.report_counter is not None:
            # Also where it is tried again: it may be given up before anything else is written.
            record.outdate_reports(session, situation.host, failure.report_counter)
        if ended and unchanged:
            _leave_as_it_was(held)
        elif ended and held.deployable is not None:
            record.runs(held.session, held.deployable, image_uuid=None, function_id=None)
            held.tell()
    if not ended:
        raise _again(reason)


def _again(reason: str) -> work.TryLater:
    return work.TryLater(f"What a guest has cannot be put back now: {reason}")


def _leave_as_it_was(held: _Held) -> None:
    session, deployable = held.session, held.deployable
    if deployable is None:
        return
    if held.operation.asked_by == operations.RECOVERY:
        # What the hardware has lost could not be put back.
        record.runs(session, deployable, image_uuid=None, function_id=None)
    else:
        record.certain(session, deployable)
    held.tell()


@db.retry
def end_well(claim: work.Claim, situation: Situation, answer: rpc.ProgramAnswer) -> None:
    """Record what the host has verified; where that is another function, the operation failed.

    :raises TryLater: a guest still has what it was to put back
    """
    wrong, ended = "", True
    with db.writer() as session:
        held = _hold(session, claim)
        image: dict[str, Any] = held.operation.image or {}
        expected, shown = image["function_id"], answer.function
        if expected and shown is not None and not program.same(expected, shown):
            wrong = f"The host shows function {shown or 'none'} where the image has {expected}."
            ended = held.end_badly(wrong, operations.BROKEN)
            image, expected = {}, None
        else:
            text = f"Written, and verified by {answer.verified_by}."
            held.move(operations.SUCCEEDED, text, error=None, fault=None)
        record.outdate_reports(session, situation.host, answer.report_counter)
        if ended and held.deployable is not None:
            record.runs(
                held.session,
                held.deployable,
                image_uuid=image.get("uuid"),
                function_id=expected or shown or None,
                function_name=image.get("function_name"),
                programmed_by=held.operation.asked_by,
                verified_by=answer.verified_by,
                bitstream=image or None,
            )
            held.tell()
    if not ended:
        raise _again(wrong)


@db.retry
def restart_clocks(claim: work.Claim) -> None:
    """Time during which the broker is down does not count against the host in any bind."""
    with db.writer() as session:
        deployable = operations.lock(session, claim.key)
        if deployable is not None:
            arq_states.restart_clocks(session, models.Arq.device_rp_uuid == deployable.rp_uuid)
