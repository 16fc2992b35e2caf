# SPDX-License-Identifier: Apache-2.0
"""The steps of one operation: the handler of ``program/<deployable>``.

First the image is found and compared with the deployable, and Placement is asked who has an
allocation of it. Then its inventory is withdrawn, so that nobody is given any of it from then on,
and Placement is asked again for those who were faster. Only then is anything written. Each step is
a transaction, so that another conductor can take over between any two. What has begun to be written
ends only when the host has said what is loaded.

Each transaction holds the piece of work and locks the deployable first, so that nobody else decides
anything about it meanwhile.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, rpc, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.drivers import base, identity
from cyborg.peers import clients, glance
from cyborg.placement import client
from cyborg.programming import (
    image_match,
    layouts,
    locked_operation,
    operations,
    program,
    states,
    trait_match,
    using_arqs,
    withdrawal,
)
from cyborg.programming.locked_operation import CannotProgram, LockedOperation
from cyborg.programming.operation_facts import OperationFacts
from cyborg.programming.states import ProgramEvent
from cyborg.states import arq_states

_NOT_AWAITED = "Nobody waits for it any more."


_Locked = tuple[orm.Session, models.Deployable | None, models.Operation | None]


@contextlib.contextmanager
def _locked(item: work.Item) -> Iterator[_Locked]:
    """A transaction, and what the item is about: the deployable and its operation, if any.

    :raises LeaseLost: another conductor has it
    """
    with work.holding(item) as session:
        deployable = operations.lock(session, item.key)
        yield session, deployable, operations.active_on(session, item.key)


@contextlib.contextmanager
def _holding(item: work.Item) -> Iterator[LockedOperation]:
    """Likewise, for what has begun.

    :raises LeaseLost: the operation has ended too
    """
    with _locked(item) as (session, deployable, operation):
        if operation is None:
            raise work.LeaseLost(f"{item.kind}/{item.key}")
        yield LockedOperation(session, deployable, operation)


def run(conf: cfg.ConfigOpts, item: work.Item) -> None:
    """Carry out the operation on a deployable from where it was left, if there is one."""
    try:
        _run(conf, item)
    except errors.CyborgError as exc:
        _note_wait(item, str(exc))
        raise
    except ka_exc.ClientException as exc:
        reason = clients.why_not("placement", exc)
        _note_wait(item, reason)
        raise work.TryLater(reason) from exc


@db.retry
def _note_wait(item: work.Item, reason: str) -> None:
    with _locked(item) as (session, _, operation):
        if operation is not None:
            operations.note_wait(session, operation, reason)


def _run(conf: cfg.ConfigOpts, item: work.Item) -> None:
    item.checkpoint()
    known = read(item)
    if known is None:
        return
    # Nobody knows what the host has answered to the conductor that began to write.
    taken_over = known.operation.state == operations.WRITING
    if not taken_over:
        try:
            if operations.fills_pool(known.operation):
                _refuse_drained(known.host)
            is_new = known.operation.state == operations.QUEUED
            if is_new and not _begin(conf, item, known):
                return
            withdrawal.reserve(conf, item, known)
            if not begin_to_write(item):
                return
        except CannotProgram as exc:
            refuse(item, exc)
            return
        item.checkpoint()
        known = read(item)
    if known is not None:
        _write(conf, item, known, taken_over=taken_over)


@db.retry
def read(item: work.Item) -> OperationFacts | None:
    """The operation that is to be carried out, with all about it; None if there is none.

    A program that is lost gets an operation that restores it, unless there is another operation.
    """
    with _locked(item) as (session, deployable, present):
        operation = present
        # Some cards leave the bus while they are written.
        is_written = operation is not None and operation.state == operations.WRITING
        if deployable is None or (deployable.missing and not is_written):
            if operation is not None:
                locked_operation.end_gone(LockedOperation(session, deployable, operation))
            return None
        if operation is None and not deployable.is_settled:
            operation = operations.recover(session, deployable)
        if operation is None:
            return None
        locked = LockedOperation(session, deployable, operation)
        if operation.state == operations.QUEUED and locked_operation.end_needless(locked):
            return None
        return OperationFacts.of(session, deployable, operation)


def _begin(conf: cfg.ConfigOpts, item: work.Item, known: OperationFacts) -> bool:
    """Find the image and begin to reserve the deployable; False if it runs the image already.

    :raises CannotProgram: there is no such image, or the deployable is in use
    """
    if known.operation.asked_by == operations.RECOVERY and reserve_again(item):
        return True
    image, runs_already = _image(conf, known)
    if not runs_already or known.operation.asked_by == operations.CLEANING:
        # Later as well, but by then the binds of these consumers are refused.
        with contextlib.suppress(client.NoSuchProvider):
            withdrawal.refuse_consumers(client.Client(conf), item, known, image)
    return withdraw(item, image)


def _image(conf: cfg.ConfigOpts, known: OperationFacts) -> tuple[glance.Image | None, bool]:
    """The image that the operation asks for, and whether the deployable runs it already.

    A layout has no image.

    :raises CannotProgram: there is none, or it does not fit the deployable, or what the deployable
        has lost is to be restored first
    """
    restores = known.operation.asked_by == operations.RECOVERY
    if not known.deployable.is_settled and not restores:
        # Before Glance is asked, which may be away.
        raise CannotProgram(
            operations.CONFLICT, "It has lost what it ran, and that is put back first."
        )
    what = program.of_operation(known.operation)
    if layouts.is_layout(known.deployable.record):
        return None, what.is_run_by(known.deployable.record)
    if not clients.configured(conf, "glance"):
        raise CannotProgram(
            operations.BROKEN, "There is no Glance: [glance] auth_type is not set for conductors."
        )
    try:
        image = glance.find_image(
            conf,
            uuid=what.image_uuid,
            name=what.image_name,
            function_id=what.function_id,
            function_name=what.function_name,
        )
    except glance.NoImage as exc:
        raise CannotProgram(operations.INVALID, str(exc)) from exc
    except ka_exc.ClientException as exc:
        raise work.TryLater(clients.why_not("glance", exc)) from exc
    why_not = image_match.why_not(
        image,
        what,
        device=known.device,
        deployable=known.deployable,
        attributes=known.attributes,
    )
    if why_not:
        raise CannotProgram(operations.INVALID, f"Image {image.uuid} does not fit: {why_not}")
    return image, program.is_run(image, what, known.deployable.record)


@db.retry
def withdraw(item: work.Item, image: glance.Image | None) -> bool:
    """Have the inventory withdrawn to write an image; False if the deployable runs it already.

    Without an image, it is to have another layout.

    :raises CannotProgram: somebody uses the deployable
    """
    with _holding(item) as locked:
        deployable, operation = locked.deployable, locked.operation
        if deployable is None:
            raise CannotProgram(operations.BROKEN, locked_operation.GONE)
        if deployable.program_mode is None:
            raise CannotProgram(operations.INVALID, "Its driver does not program it any more.")
        what, record = program.of_operation(operation), deployable.record
        runs_already = (
            program.is_run(image, what, record) if image else what.is_run_by(record)
        )
        if runs_already and not locked.overwrites:
            if what.function_name is not None and deployable.function_name is None:
                deployable.function_name = what.function_name
            locked.move(operations.SUCCEEDED, f"The deployable runs {what} already.")
            locked.notify()
            return False
        if not locked.restores:
            _refuse_users(locked, deployable, image)
        event = None if locked.restores else ProgramEvent.WITHDRAWN
        name, facts = _to_be_written(image, what)
        text = f"{name} is to be written; the inventory is being withdrawn."
        locked.move(operations.RESERVING, text, event, image=facts)
        locked.notify(binds=False)
        return True


def _refuse_users(
    locked: LockedOperation, deployable: models.Deployable, image: glance.Image | None
) -> None:
    """Raise CannotProgram if a user of the deployable does not want its operation's program.

    So it does if nobody wants it any more.

    :raises NotYet: a handle must be cleaned first of who has asked for a bind and has left
    """
    session, operation = locked.session, locked.operation
    # Who names the image otherwise waits for it too.
    written = program.of_operation(operation, image)
    why_not = locked.why_used(written)
    is_bind = operation.consumer_uuid is not None
    if why_not and not (is_bind and using_arqs.is_being_cleaned(session, deployable, written)):
        raise CannotProgram(operations.CONFLICT, why_not)
    if operations.is_for_binds(operation) and image is not None:
        _check_those_who_wait(locked, image)
    if why_not:
        raise work.NotYet(why_not)


def _to_be_written(image: glance.Image | None, what: program.Program) -> tuple[str, dict[str, Any]]:
    """The name of an image or a layout, and what is recorded of it until it is written.

    :raises CannotProgram: the data of the image cannot be verified
    """
    if image is None:
        layout = what.function_id or ""
        return f"Layout {layout}", layouts.facts(layout)
    facts = image.facts()
    if facts is None:
        reason = f"Image {image.uuid} has no checksum by which to verify its data."
        raise CannotProgram(operations.INVALID, reason)
    return f"Image {image.uuid}", facts


def _check_those_who_wait(locked: LockedOperation, image: glance.Image) -> None:
    """Raise CannotProgram if the program of an operation for binds would serve none that waits."""
    row = locked.deployable
    waiting = using_arqs.waiting(locked.session, locked.operation, image)
    if not waiting or row is None:
        raise CannotProgram(operations.CONFLICT, _NOT_AWAITED)
    if "attributes" in sa.inspect(row).unloaded:
        locked.session.refresh(row, ["attributes"])
    why_not = trait_match.why_of_no_use((arq.request for arq in waiting), row, image)
    if why_not:
        raise CannotProgram(operations.INVALID, why_not)


@db.retry
def reserve_again(item: work.Item) -> bool:
    """Have what was lost written as it was, without Glance; False if it is not known how."""
    with _holding(item) as locked:
        image = locked.deployable.bitstream if locked.deployable is not None else None
        if not image or image["uuid"] != locked.operation.image_uuid:
            return False
        text = f"Image {image['uuid']} is to be written again; the inventory is being withdrawn."
        locked.move(operations.RESERVING, text, image=image)
        locked.notify(binds=False)
        return True


@db.retry
def refuse(item: work.Item, refusal: CannotProgram) -> None:
    """End the operation before anything was written.

    :raises TryLater: a guest still has what it was to restore
    """
    with _holding(item) as locked:
        later = locked.fail(str(refusal), refusal.fault)
        if later is None and locked.deployable is not None and not locked.deployable.is_settled:
            # What it has lost is restored next.
            work.want(locked.session, work.PROGRAM, [locked.deployable.uuid])
    if later:
        raise later


def _refuse_drained(host: models.Host) -> None:
    """Raise CannotProgram if the host is drained: nothing is written for a function pool."""
    if host.drained:
        reason = f"Host {host.name} is drained, and nothing is written there for a function pool."
        raise CannotProgram(operations.CONFLICT, reason)


@db.retry
def begin_to_write(item: work.Item) -> bool:
    """Note that from now on only the host can say what the deployable runs.

    False if the operation has ended instead, as there is nothing to restore any more.

    :raises CannotProgram: nobody waits for it any more, or nothing is written for a function pool
        there
    """
    with _holding(item) as locked:
        if locked_operation.end_needless(locked):
            return False
        for_binds = operations.is_for_binds(locked.operation)
        if for_binds and not using_arqs.waiting(locked.session, locked.operation):
            raise CannotProgram(operations.CONFLICT, _NOT_AWAITED)
        if operations.fills_pool(locked.operation) and locked.deployable is not None:
            # It may have been drained since it was read.
            its_host = sa.select(models.Host).where(locked_operation.is_host_of(locked.deployable))
            _refuse_drained(locked.session.scalars(its_host).one())
        again, anew = "It is being written again.", "Nobody has it; it is being written."
        text, number = again if locked.restores else anew, locked.operation.writes + 1
        locked.move(operations.WRITING, text, ProgramEvent.WRITE_BEGAN, writes=number)
        row = locked.deployable
        if row is not None:
            using_arqs.note_needs(locked.session, row, needs_write=True)
        if row is not None and layouts.is_layout(row.record):
            # What is shown may be forgotten now.
            locked_operation.forget_report(locked.session, row)
        return True


def _write(
    conf: cfg.ConfigOpts, item: work.Item, known: OperationFacts, *, taken_over: bool
) -> None:
    if known.host.down:
        # Each question to a dead host would hold up a thread.
        raise work.TryLater(f"Host {known.host.name} is down; it is asked when it reports.")
    try:
        answer = rpc.run_program(
            conf, known.host.name, _step(known), conf.programming.step_timeout
        )
    except rpc.BrokerUnreachable as exc:
        restart_clocks(item)
        raise work.TryLater(str(exc)) from exc
    except rpc.HostUnreachable as exc:
        raise work.TryLater(str(exc)) from exc
    except rpc.ProgramFailed as exc:
        unchanged = not exc.written and not taken_over
        end_failed(item, known, exc, unchanged=unchanged)
    else:
        end_well(item, known, answer)


def _step(known: OperationFacts) -> rpc.ProgramStep:
    image: dict[str, Any] = known.operation.image or {}
    path = known.control_path
    return rpc.ProgramStep(
        driver=known.deployable.driver_name,
        deployable=known.deployable.name,
        deployable_uuid=known.deployable.uuid,
        cpid_type=path.cpid_type,
        cpid_info=json.loads(path.cpid_info),
        attach_handles=tuple(
            base.AttachHandle(
                attach_type=handle.attach_type, attach_info=json.loads(handle.attach_info)
            )
            for handle in known.handles
        ),
        image_uuid=image["uuid"] or "",
        size=image.get("size", 0),
        hash_algo=image.get("hash_algo", ""),
        hash_value=image.get("hash_value", ""),
        function_id=image["function_id"],
        signature=image.get("signature", {}),
        operation_uuid=known.operation.uuid,
        write=known.operation.writes,
        asked_ms=known.now_ms,
        agent_started=known.host.report_started,
        card=identity.Identity(known.device.identity).to_wire(),
        restores=known.deployable.program_state in states.TO_RESTORE,
    )


@contextlib.contextmanager
def _dropping_reports(
    item: work.Item, known: OperationFacts, counter: int | None
) -> Iterator[LockedOperation]:
    """Likewise; reports are dropped whose pass began before the hardware ran what it runs now."""
    host, seen = models.Host, known.host
    same = (host.id == seen.id, host.report_started == seen.report_started)
    with _holding(item) as locked:
        yield locked
        if counter is not None:
            older = host.report_counter < counter
            db.update(locked.session, host, *same, older, report_counter=counter)


@db.retry
def end_failed(
    item: work.Item, known: OperationFacts, failure: rpc.ProgramFailed, *, unchanged: bool
) -> None:
    """End an operation whose host could not do it; ``unchanged``: not a byte was written.

    :raises TryLater: a guest still has what it was to restore
    """
    # Also if it is tried again: it may be given up before anything else is written.
    with _dropping_reports(item, known, failure.report_counter) as locked:
        later = locked.fail(str(failure), operations.BROKEN, written=not unchanged)
    if later:
        raise later


@db.retry
def end_well(item: work.Item, known: OperationFacts, answer: rpc.ProgramAnswer) -> None:
    """Record what the host has verified; if that is another function, the operation failed.

    :raises TryLater: a guest still has what it was to restore, or a layout is not reported yet
    """
    with _dropping_reports(item, known, answer.report_counter) as locked:
        expected, shown = (locked.operation.image or {})["function_id"], answer.function
        _await_handles(locked, shown)
        later = None
        if expected and shown is not None and not program.same(expected, shown):
            # What it runs now is recorded when a report says the same.
            reason = f"The host shows function {shown or 'none'} where the image has {expected}."
            later = locked.fail(reason, operations.BROKEN, written=True)
        else:
            _succeed(locked, expected or shown or None, answer.verified_by)
    if later:
        raise later


def _succeed(locked: LockedOperation, function: str | None, verified_by: str) -> None:
    """Record that the deployable runs what was written, and that function."""
    operation, image = locked.operation, locked.operation.image or {}
    is_blank = locked.overwrites and operation.pool_uuid is None
    # A blank image is no program that anybody asks for, or needs to have restored.
    has_image = image["uuid"] is not None and not is_blank
    its = {"bitstream_id": image["uuid"], "bitstream": image} if has_image else {}
    runs = states.record(
        function_id=function,
        function_name=image.get("function_name"),
        programmed_ms=operations.now(locked.session),
        programmed_by=operation.asked_by,
        verified_by=verified_by,
        **its,
    )
    event = ProgramEvent.BLANKED if is_blank and function is None else ProgramEvent.VERIFIED
    text = f"Written, and verified by {verified_by}."
    locked.move(operations.SUCCEEDED, text, event, runs=runs, error=None)
    locked.note_written()
    locked.notify()


def _await_handles(locked: LockedOperation, shown: str | None) -> None:
    """Raise NotYet if the host has still to report the handles of the layout that it shows.

    Until then those of the former layout are recorded, which must not be given out. Each report has
    the operation looked at again.
    """
    row = locked.deployable
    if row is None or row.missing or not layouts.is_layout(row.record) or shown is None:
        return
    asked = program.of_operation(locked.operation).function_id
    if program.same(shown, asked) and not program.same(shown, row.function_shown):
        raise work.NotYet(f"Layout {shown} is written, and its handles are not reported yet.")


@db.retry
def restart_clocks(item: work.Item) -> None:
    """Do not count the time during which the broker is down against the host, in any bind."""
    with _locked(item) as (session, deployable, _):
        if deployable is not None:
            of_it = models.Arq.device_rp_uuid == deployable.rp_uuid
            arq_states.restart_clocks(session, of_it)
