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
    guard,
    held_operation,
    image_match,
    layouts,
    operations,
    program,
    states,
    trait_match,
    withdrawal,
)
from cyborg.programming.held_operation import Held, Refused
from cyborg.programming.situation import Situation
from cyborg.programming.states import Event
from cyborg.states import arq_states

_NOT_AWAITED = "Nobody waits for it any more."


_Locked = tuple[orm.Session, models.Deployable | None, models.Operation | None]


@contextlib.contextmanager
def _locked(claim: work.Claim) -> Iterator[_Locked]:
    """A transaction, and what the claim is about: the deployable and its operation, if any.

    :raises LeaseLost: another conductor has it
    """
    with db.writer() as session:
        work.hold(session, claim)
        deployable = operations.lock(session, claim.key)
        yield session, deployable, operations.active_on(session, claim.key)


@contextlib.contextmanager
def _holding(claim: work.Claim) -> Iterator[Held]:
    """Likewise, for what has begun.

    :raises LeaseLost: the operation has ended too
    """
    with _locked(claim) as (session, deployable, operation):
        if operation is None:
            raise work.LeaseLost(f"{claim.kind}/{claim.key}")
        yield Held(session, deployable, operation)


def run(conf: cfg.ConfigOpts, claim: work.Claim) -> None:
    """Carry out the operation on a deployable from where it was left, if there is one."""
    try:
        _run(conf, claim)
    except errors.CyborgError as exc:
        _note_wait(claim, str(exc))
        raise
    except ka_exc.ClientException as exc:
        reason = clients.why_not("placement", exc)
        _note_wait(claim, reason)
        raise work.TryLater(reason) from exc


@db.retry
def _note_wait(claim: work.Claim, reason: str) -> None:
    with _locked(claim) as (session, _, operation):
        if operation is not None:
            operations.note_wait(session, operation, reason)


def _run(conf: cfg.ConfigOpts, claim: work.Claim) -> None:
    claim.checkpoint()
    situation = read(claim)
    if situation is None:
        return
    # Nobody knows what the host has answered to the conductor that began to write.
    taken_over = situation.operation.state == operations.WRITING
    if not taken_over:
        try:
            if operations.fills_pool(situation.operation):
                _refuse_drained(situation.host)
            is_new = situation.operation.state == operations.QUEUED
            if is_new and not _begin(conf, claim, situation):
                return
            withdrawal.reserve(conf, claim, situation)
            if not begin_to_write(claim):
                return
        except Refused as exc:
            refuse(claim, exc)
            return
        claim.checkpoint()
        situation = read(claim)
    if situation is not None:
        _write(conf, claim, situation, taken_over=taken_over)


@db.retry
def read(claim: work.Claim) -> Situation | None:
    """The operation that is to be carried out, with all about it; None if there is none.

    A program that is lost gets an operation that restores it, unless there is another operation.
    """
    with _locked(claim) as (session, deployable, present):
        operation = present
        # Some cards leave the bus while they are written.
        is_written = operation is not None and operation.state == operations.WRITING
        if deployable is None or (deployable.missing and not is_written):
            if operation is not None:
                held_operation.end_gone(Held(session, deployable, operation))
            return None
        if operation is None and not deployable.is_settled:
            operation = operations.recover(session, deployable)
        if operation is None:
            return None
        held = Held(session, deployable, operation)
        if operation.state == operations.QUEUED and held_operation.end_needless(held):
            return None
        return Situation.of(session, deployable, operation)


def _begin(conf: cfg.ConfigOpts, claim: work.Claim, situation: Situation) -> bool:
    """Find the image and begin to reserve the deployable; False if it runs the image already.

    :raises Refused: there is no such image, or the deployable is in use
    """
    if situation.operation.asked_by == operations.RECOVERY and reserve_again(claim):
        return True
    image, runs_already = _image(conf, situation)
    if not runs_already or situation.operation.asked_by == operations.CLEANING:
        # Later as well, but by then the binds of these consumers are refused.
        with contextlib.suppress(client.NotFound):
            withdrawal.refuse_consumers(client.Client(conf), claim, situation, image)
    return withdraw(claim, image)


def _image(conf: cfg.ConfigOpts, situation: Situation) -> tuple[glance.Image | None, bool]:
    """The image that the operation asks for, and whether the deployable runs it already.

    A layout has no image.

    :raises Refused: there is none, or it does not fit the deployable, or what the deployable has
        lost is to be restored first
    """
    restores = situation.operation.asked_by == operations.RECOVERY
    if not situation.deployable.is_settled and not restores:
        # Before Glance is asked, which may be away.
        raise Refused(operations.CONFLICT, "It has lost what it ran, and that is put back first.")
    what = program.of_operation(situation.operation)
    if layouts.has(situation.deployable):
        return None, what.is_run_by(situation.deployable)
    if not clients.configured(conf, "glance"):
        raise Refused(
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
        raise Refused(operations.INVALID, str(exc)) from exc
    except ka_exc.ClientException as exc:
        raise work.TryLater(clients.why_not("glance", exc)) from exc
    why_not = image_match.why_not(
        image,
        what,
        device=situation.device,
        deployable=situation.deployable,
        attributes=situation.attributes,
    )
    if why_not:
        raise Refused(operations.INVALID, f"Image {image.uuid} does not fit: {why_not}")
    return image, image_match.is_run(image, what, situation.deployable)


@db.retry
def withdraw(claim: work.Claim, image: glance.Image | None) -> bool:
    """Have the inventory withdrawn to write an image; False if the deployable runs it already.

    Without an image, it is to have another layout.

    :raises Refused: somebody uses the deployable
    """
    with _holding(claim) as held:
        deployable, operation = held.deployable, held.operation
        if deployable is None:
            raise Refused(operations.BROKEN, held_operation.GONE)
        if deployable.program_mode is None:
            raise Refused(operations.INVALID, "Its driver does not program it any more.")
        what = program.of_operation(operation)
        runs_already = (
            image_match.is_run(image, what, deployable) if image else what.is_run_by(deployable)
        )
        if runs_already and not held.overwrites:
            if what.function_name is not None and deployable.function_name is None:
                deployable.function_name = what.function_name
            held.move(operations.SUCCEEDED, f"The deployable runs {what} already.")
            held.notify()
            return False
        if not held.restores:
            _refuse_users(held, deployable, image)
        event = None if held.restores else Event.WITHDRAWN
        name, facts = _to_be_written(image, what)
        text = f"{name} is to be written; the inventory is being withdrawn."
        held.move(operations.RESERVING, text, event, image=facts)
        held.notify(binds=False)
        return True


def _refuse_users(held: Held, deployable: models.Deployable, image: glance.Image | None) -> None:
    """Raise Refused if somebody uses the deployable who does not want its operation's program.

    So it does if nobody wants it any more.

    :raises NotYet: a handle must be cleaned first of who has asked for a bind and has left
    """
    session, operation = held.session, held.operation
    # Who names the image otherwise waits for it too.
    written = program.of_operation(operation, image)
    why_not = held.why_used(written)
    is_bind = operation.consumer_uuid is not None
    if why_not and not (is_bind and guard.is_being_cleaned(session, deployable, written)):
        raise Refused(operations.CONFLICT, why_not)
    if operations.is_for_binds(operation) and image is not None:
        _check_those_who_wait(held, image)
    if why_not:
        raise work.NotYet(why_not)





def _to_be_written(image: glance.Image | None, what: program.Program) -> tuple[str, dict[str, Any]]:
    """The name of an image or a layout, and what is recorded of it until it is written.

    :raises Refused: the data of the image cannot be verified
    """
    if image is None:
        layout = what.function_id or ""
        return f"Layout {layout}", layouts.facts(layout)
    facts = image.facts()
    if facts is None:
        reason = f"Image {image.uuid} has no checksum by which to verify its data."
        raise Refused(operations.INVALID, reason)
    return f"Image {image.uuid}", facts


def _check_those_who_wait(held: Held, image: glance.Image) -> None:
    """Raise Refused if the program of an operation for binds would serve none that waits."""
    row = held.deployable
    waiting = guard.waiting(held.session, held.operation, image)
    if not waiting or row is None:
        raise Refused(operations.CONFLICT, _NOT_AWAITED)
    if "attributes" in sa.inspect(row).unloaded:
        held.session.refresh(row, ["attributes"])
    why_not = trait_match.why_of_no_use((arq.request for arq in waiting), row, image)
    if why_not:
        raise Refused(operations.INVALID, why_not)


@db.retry
def reserve_again(claim: work.Claim) -> bool:
    """Have what was lost written as it was, without Glance; False if it is not known how."""
    with _holding(claim) as held:
        image = held.deployable.bitstream if held.deployable is not None else None
        if not image or image["uuid"] != held.operation.image_uuid:
            return False
        text = f"Image {image['uuid']} is to be written again; the inventory is being withdrawn."
        held.move(operations.RESERVING, text, image=image)
        held.notify(binds=False)
        return True


@db.retry
def refuse(claim: work.Claim, refusal: Refused) -> None:
    """End the operation before anything was written.

    :raises TryLater: a guest still has what it was to restore
    """
    with _holding(claim) as held:
        later = held.fail(str(refusal), refusal.fault)
        if later is None and held.deployable is not None and not held.deployable.is_settled:
            # What it has lost is restored next.
            held.want_program()
    if later:
        raise later


def _refuse_drained(host: models.Host) -> None:
    """Raise Refused if the host is drained, so that nothing is written for a function pool."""
    if host.drained:
        reason = f"Host {host.name} is drained, and nothing is written there for a function pool."
        raise Refused(operations.CONFLICT, reason)


@db.retry
def begin_to_write(claim: work.Claim) -> bool:
    """Note that from now on only the host can say what the deployable runs.

    False if the operation has ended instead, as there is nothing to restore any more.

    :raises Refused: nobody waits for it any more, or nothing is written for a function pool there
    """
    with _holding(claim) as held:
        if held_operation.end_needless(held):
            return False
        for_binds = operations.is_for_binds(held.operation)
        if for_binds and not guard.waiting(held.session, held.operation):
            raise Refused(operations.CONFLICT, _NOT_AWAITED)
        if operations.fills_pool(held.operation) and held.deployable is not None:
            # It may have been drained since it was read.
            its_host = sa.select(models.Host).where(held_operation.is_host_of(held.deployable))
            _refuse_drained(held.session.scalars(its_host).one())
        again, anew = "It is being written again.", "Nobody has it; it is being written."
        text, number = again if held.restores else anew, held.operation.writes + 1
        held.move(operations.WRITING, text, Event.WRITE_BEGAN, writes=number)
        row = held.deployable
        if row is not None:
            guard.note_needs(held.session, row, needs_write=True)
        if row is not None and layouts.has(row):
            # What is shown may be forgotten now.
            held_operation.forget_report(held.session, row)
        return True


def _write(
    conf: cfg.ConfigOpts, claim: work.Claim, situation: Situation, *, taken_over: bool
) -> None:
    if situation.host.down:
        # Each question to a dead host would hold up a thread.
        raise work.TryLater(f"Host {situation.host.name} is down; it is asked when it reports.")
    try:
        answer = rpc.run_program(
            conf, situation.host.name, _step(situation), conf.programming.step_timeout
        )
    except rpc.BrokerUnreachable as exc:
        restart_clocks(claim)
        raise work.TryLater(str(exc)) from exc
    except rpc.HostUnreachable as exc:
        raise work.TryLater(str(exc)) from exc
    except rpc.ProgramFailed as exc:
        unchanged = not exc.written and not taken_over
        end_failed(claim, situation, exc, unchanged=unchanged)
    else:
        end_well(claim, situation, answer)


def _step(situation: Situation) -> rpc.ProgramStep:
    image: dict[str, Any] = situation.operation.image or {}
    path = situation.control_path
    return rpc.ProgramStep(
        driver=situation.deployable.driver_name,
        deployable=situation.deployable.name,
        deployable_uuid=situation.deployable.uuid,
        cpid_type=path.cpid_type,
        cpid_info=json.loads(path.cpid_info),
        attach_handles=tuple(
            base.AttachHandle(
                attach_type=handle.attach_type, attach_info=json.loads(handle.attach_info)
            )
            for handle in situation.handles
        ),
        image_uuid=image["uuid"] or "",
        size=image.get("size", 0),
        hash_algo=image.get("hash_algo", ""),
        hash_value=image.get("hash_value", ""),
        function_id=image["function_id"],
        signature=image.get("signature", {}),
        operation_uuid=situation.operation.uuid,
        write=situation.operation.writes,
        asked_ms=situation.now_ms,
        agent_started=situation.host.report_started,
        card=identity.Identity(situation.device.identity).to_wire(),
    )


@contextlib.contextmanager
def _dropping_reports(
    claim: work.Claim, situation: Situation, counter: int | None
) -> Iterator[Held]:
    """Likewise; reports are dropped whose pass began before the hardware ran what it runs now."""
    host, seen = models.Host, situation.host
    same = (host.id == seen.id, host.report_started == seen.report_started)
    with _holding(claim) as held:
        yield held
        if counter is not None:
            older = host.report_counter < counter
            db.update(held.session, host, *same, older, report_counter=counter)


@db.retry
def end_failed(
    claim: work.Claim, situation: Situation, failure: rpc.ProgramFailed, *, unchanged: bool
) -> None:
    """End an operation whose host could not do it; ``unchanged``: not a byte was written.

    :raises TryLater: a guest still has what it was to restore
    """
    # Also if it is tried again: it may be given up before anything else is written.
    with _dropping_reports(claim, situation, failure.report_counter) as held:
        later = held.fail(str(failure), operations.BROKEN, written=not unchanged)
    if later:
        raise later


@db.retry
def end_well(claim: work.Claim, situation: Situation, answer: rpc.ProgramAnswer) -> None:
    """Record what the host has verified; if that is another function, the operation failed.

    :raises TryLater: a guest still has what it was to restore, or a layout is not reported yet
    """
    with _dropping_reports(claim, situation, answer.report_counter) as held:
        expected, shown = (held.operation.image or {})["function_id"], answer.function
        _await_handles(held, shown)
        later = None
        if expected and shown is not None and not program.same(expected, shown):
            # What it runs now is recorded when a report says the same.
            reason = f"The host shows function {shown or 'none'} where the image has {expected}."
            later = held.fail(reason, operations.BROKEN, written=True)
        else:
            _succeed(held, expected or shown or None, answer.verified_by)
    if later:
        raise later


def _succeed(held: Held, function: str | None, verified_by: str) -> None:
    """Record that the deployable runs what was written, and that function."""
    operation, image = held.operation, held.operation.image or {}
    is_blank = held.overwrites and operation.pool_uuid is None
    # A blank image is no program that anybody asks for, or needs to have restored.
    has_image = image["uuid"] is not None and not is_blank
    its = {"bitstream_id": image["uuid"], "bitstream": image} if has_image else {}
    runs = states.record(
        function_id=function,
        function_name=image.get("function_name"),
        programmed_ms=operations.now(held.session),
        programmed_by=operation.asked_by,
        verified_by=verified_by,
        **its,
    )
    event = Event.BLANKED if is_blank and function is None else Event.VERIFIED
    text = f"Written, and verified by {verified_by}."
    held.move(operations.SUCCEEDED, text, event, runs=runs, error=None)
    held.note_written()
    held.notify()


def _await_handles(held: Held, shown: str | None) -> None:
    """Raise NotYet if the host has still to report the handles of the layout that it shows.

    Until then those of the former layout are recorded, which must not be given out. Each report has
    the operation looked at again.
    """
    row = held.deployable
    if row is None or row.missing or not layouts.has(row) or shown is None:
        return
    asked = program.of_operation(held.operation).function_id
    if program.same(shown, asked) and not program.same(shown, row.function_shown):
        raise work.NotYet(f"Layout {shown} is written, and its handles are not reported yet.")


@db.retry
def restart_clocks(claim: work.Claim) -> None:
    """Do not count the time during which the broker is down against the host, in any bind."""
    with _locked(claim) as (session, deployable, _):
        if deployable is not None:
            of_it = models.Arq.device_rp_uuid == deployable.rp_uuid
            arq_states.restart_clocks(session, of_it)
