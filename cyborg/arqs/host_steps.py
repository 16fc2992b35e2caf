# SPDX-License-Identifier: Apache-2.0
"""Steps on the host, before a handle is used and after: the handler of ``host-step/<handle>``.

One row a handle, so that no two steps on it ever run at once. What is to be done is read from the
ARQ that holds the handle: prepare it for a BindStarted one, clean it for any that is released. For
a Bound one it is prepared again, which changes nothing unless its host has forgotten it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, rpc, work
from cyborg.arqs import bind_results, binding, fit, programs, release, states
from cyborg.db import models
from cyborg.notifications import notices

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Situation:
    """The ARQ that holds the handle, and what its state asks of the host."""

    arq: models.Arq
    device_uuid: str
    deployable_uuid: str
    programmable: bool
    is_settled: bool
    lacks_program: bool
    misfit: str | None
    now_ms: int
    host: str
    host_down: bool
    missing: bool
    prepares: bool
    cleans: bool
    erases: bool
    step: rpc.HostStep


def run(conf: cfg.ConfigOpts, claim: work.Claim) -> None:
    """Do the step that the handle's ARQ asks for now; none where it is free."""
    situation = _situation(claim.key)
    if situation is None:
        return
    claim.checkpoint()
    if situation.arq.state == states.BOUND:
        _prepare_again(conf, situation)
    elif situation.arq.state == states.BIND_STARTED:
        _prepare_in_time(conf, claim, situation)
    else:
        _clean(conf, claim, situation)


def _situation(handle_uuid: str) -> _Situation | None:
    arq, handle = models.Arq, models.AttachHandle
    query = (
        sa.select(
            arq,
            handle,
            models.Deployable,
            models.Device.uuid,
            models.ControlPath,
            models.Host.name,
            models.Host.down,
            models.Host.report_started,
            db.now_ms(),
        )
        .join(handle, handle.id == arq.attach_handle_id)
        .join(models.Deployable, models.Deployable.id == handle.deployable_id)
        .join(models.Device, models.Device.id == models.Deployable.device_id)
        .join(models.ControlPath, models.ControlPath.device_id == models.Device.id)
        .join(models.Host, models.Host.id == models.Device.host_id)
        .where(handle.uuid == handle_uuid)
        .options(orm.selectinload(models.Deployable.attributes))
    )
    with db.reader() as session:
        row = session.execute(query).one_or_none()
    if row is None:
        return None
    holder, held, deployable, device_uuid, path, host, down, started, now_ms = row
    action = "prepare" if holder.state in {states.BIND_STARTED, states.BOUND} else "clean"
    return _Situation(
        arq=holder,
        device_uuid=device_uuid,
        deployable_uuid=deployable.uuid,
        programmable=deployable.program_mode is not None,
        is_settled=deployable.is_settled,
        lacks_program=programs.lacks_program(holder.group, deployable),
        misfit=_misfit(holder, deployable),
        now_ms=now_ms,
        host=host,
        host_down=down,
        missing=held.missing,
        prepares=deployable.prepares,
        cleans=deployable.cleans,
        erases=deployable.clean_erases,
        step=rpc.HostStep(
            action=action,
            driver=deployable.driver_name,
            attach_handle_uuid=held.uuid,
            attach_type=held.attach_type,
            attach_info=json.loads(held.attach_info),
            cpid_type=path.cpid_type,
            cpid_info=json.loads(path.cpid_info),
            asked_ms=now_ms,
            agent_started=started,
        ),
    )


def _prepare_in_time(conf: cfg.ConfigOpts, claim: work.Claim, situation: _Situation) -> None:
    """Prepare the handle; a fault that nobody has thought of strands no bind either."""
    try:
        _prepare(conf, claim, situation)
    except (work.LeaseLost, work.TryLater):
        raise
    except Exception as exc:
        waited = _waited(situation)
        if waited < conf.conductor.bind_deadline * 1000:
            raise
        LOG.exception("A fault in the bind of ARQ %s, which has no more time", situation.arq.uuid)
        reason = f"The handle was not prepared in {waited // 1000} s: {type(exc).__name__}: {exc}"
        _fail(claim, situation, reason)


def _prepare(conf: cfg.ConfigOpts, claim: work.Claim, situation: _Situation) -> None:
    try:
        programmed = programs.ensure(claim, situation.arq, situation.deployable_uuid)
    except programs.CannotRun as exc:
        _fail(claim, situation, str(exc))
        return
    if not (situation.is_settled and programmed):
        _await_programming(conf, claim, situation)
        return
    if situation.lacks_program:
        _fail(claim, situation, "The deployable has lost its program.")
        return
    if situation.misfit:
        _fail(claim, situation, f"The deployable does not fit as it is now: {situation.misfit}.")
        return
    if not situation.prepares:
        _bound(claim, situation)
        return
    try:
        rpc.run_host_step(conf, situation.host, situation.step, conf.conductor.host_step_timeout)
    except rpc.HostStepFailed as exc:
        _fail(claim, situation, f"The host could not prepare the handle: {exc}")
    except rpc.BrokerUnreachable as exc:
        _restart_clock(situation.arq.uuid)
        raise work.TryLater(str(exc)) from exc
    except rpc.HostUnreachable as exc:
        _give_up_after_deadline(conf, claim, situation, exc)
    else:
        _bound(claim, situation)


def _prepare_again(conf: cfg.ConfigOpts, situation: _Situation) -> None:
    """Have what a guest was given put back; its ARQ stays Bound whatever becomes of it."""
    if not situation.prepares or situation.missing:
        return
    if not situation.is_settled:
        raise work.TryLater("What the deployable runs is being put back first.")
    _refuse_down(situation)
    try:
        rpc.run_host_step(conf, situation.host, situation.step, conf.conductor.host_step_timeout)
    except (rpc.HostStepFailed, rpc.HostUnreachable) as exc:
        raise work.TryLater(f"The host cannot prepare the handle of a guest again: {exc}") from exc


def _await_programming(
    conf: cfg.ConfigOpts, claim: work.Claim, situation: _Situation
) -> None:
    """Wait: whoever ends the programming has us look again. What may take any time is no use."""
    hindrance = programs.hindrance(situation.deployable_uuid)
    if hindrance:
        _fail(claim, situation, f"What it ran before cannot be put back now: {hindrance}")
        return
    waited = _waited(situation)
    if waited < conf.conductor.bind_deadline * 1000:
        raise work.TryLater("The deployable is being programmed.")
    _fail(claim, situation, f"The deployable was not programmed in {waited // 1000} s.")


def _waited(situation: _Situation) -> int:
    """Milliseconds since the bind was asked for."""
    return situation.now_ms - (situation.arq.bind_started_ms or situation.now_ms)


def _give_up_after_deadline(
    conf: cfg.ConfigOpts, claim: work.Claim, situation: _Situation, exc: rpc.HostUnreachable
) -> None:
    waited = _waited(situation)
    if waited < conf.conductor.bind_deadline * 1000:
        raise work.TryLater(str(exc)) from exc
    reason = f"Host {situation.host} did not prepare the handle in {waited // 1000} s: {exc}"
    _fail(claim, situation, reason)


@db.retry
def _bound(claim: work.Claim, situation: _Situation) -> None:
    arq = models.Arq
    guard = (arq.uuid == situation.arq.uuid, arq.state == states.BIND_STARTED)
    host = models.Host
    with db.writer() as session:
        # A report from before the step must not pass for one that says the same after a reboot.
        db.update(session, host, host.name == situation.host, report_digest=None)
        if situation.programmable and not _is_programmed(session, situation):
            raise work.TryLater("What the deployable runs has changed meanwhile.")
        # The ARQ may be in the same state again, but for another handle and another step.
        work.hold(session, claim)
        if db.update(session, arq, *guard, state=states.BOUND, state_reason=None):
            _end(session, situation, states.BOUND)
            LOG.info("ARQ %s is Bound: its handle is prepared", situation.arq.uuid)


def _is_programmed(session: orm.Session, situation: _Situation) -> bool:
    """Whether its deployable runs what is asked for; that stays so until the transaction ends."""
    row = models.Deployable
    query = sa.select(row).where(row.uuid == situation.deployable_uuid)
    query = query.options(orm.selectinload(row.attributes))
    found = session.scalar(query.with_for_update(read=True))
    if found is None or not programs.serves(situation.arq.group, found):
        return False
    return _misfit(situation.arq, found) is None


def _misfit(arq: models.Arq, deployable: models.Deployable) -> str | None:
    """Why what the deployable runs for the ARQ does not fit it after all, or None where it does."""
    if deployable.program_mode is None or not programs.serves(arq.group, deployable):
        return None
    return fit.misfit_of_function(arq.group, deployable.attributes)


@db.retry
def _fail(claim: work.Claim, situation: _Situation, reason: str) -> None:
    """BindFailed; the handle stays attached, and is cleaned before anybody else is given it."""
    with db.writer() as session:
        work.hold(session, claim)
        if binding.fail(session, situation.arq.uuid, reason):
            _end(session, situation, states.BIND_FAILED, reason)
            work.want(session, work.HOST_STEP, [claim.key])
            work.want(session, work.PLACEMENT, [situation.host])


def _end(
    session: orm.Session, situation: _Situation, state: str, reason: str | None = None
) -> None:
    """Have everybody told that the bind has ended; the ARQ is still bound to what it was."""
    arq, step = situation.arq, situation.step
    held = notices.Handle(step.attach_handle_uuid, step.attach_type, situation.device_uuid)
    now_ms = session.execute(sa.select(db.now_ms())).scalar_one()
    bind_results.record(session, [bind_results.End(arq, state, reason, held)], now_ms)
    work.want(session, work.NOVA_EVENT, [arq.instance_uuid] if arq.instance_uuid else [])


@db.retry
def _restart_clock(arq_uuid: str) -> None:
    """Time during which the broker is down does not count against the host."""
    with db.writer() as session:
        started = {"bind_started_ms": db.now_ms()}
        guard = (models.Arq.uuid == arq_uuid, models.Arq.state == states.BIND_STARTED)
        db.update(session, models.Arq, *guard, **started)


def _clean(conf: cfg.ConfigOpts, claim: work.Claim, situation: _Situation) -> None:
    # What is gone from its host needs no cleaning there, but what was written to it comes back.
    if situation.cleans and (situation.erases or not situation.missing):
        if not (situation.is_settled or situation.missing):
            raise work.TryLater("The deployable is being written; the handle is cleaned then.")
        _refuse_down(situation)
        try:
            rpc.run_host_step(
                conf, situation.host, situation.step, conf.conductor.host_step_timeout
            )
        except (rpc.HostStepFailed, rpc.HostUnreachable, rpc.BrokerUnreachable) as exc:
            raise work.TryLater(f"Cannot clean the handle: {exc}") from exc
    _release(claim, situation.arq.uuid)


def _refuse_down(situation: _Situation) -> None:
    """Do not ask a dead host for what has time: each such question holds up a thread for seconds.

    A host may have died with many guests, whose successors are being prepared elsewhere.
    """
    if situation.host_down:
        raise work.TryLater(f"Host {situation.host} is down; its agent is asked when it reports.")


@db.retry
def _release(claim: work.Claim, arq_uuid: str) -> None:
    with db.writer() as session:
        work.hold(session, claim)
        arq = session.scalar(
            sa.select(models.Arq).where(models.Arq.uuid == arq_uuid).with_for_update()
        )
        # Bound anew is impossible while the handle is attached, but gone is not.
        if arq is not None and arq.state not in models.SERVING and arq.attach_handle_id:
            release.finish_cleaning(session, arq)
