# SPDX-License-Identifier: Apache-2.0
"""Steps on the host, before a handle is used and after: the handler of ``host-step/<handle>``.

There is one row of work per handle, so no two steps on it run at the same time. A handle that was
left is cleaned. Any other is prepared if a BindStarted ARQ has it. For a Bound one it is prepared
again, which changes nothing unless the host has lost it.

A deployable that does not run what the ARQ asks for is programmed before the handle is prepared.
One with a blank image is overwritten before the handle is cleaned.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, history, rpc, work
from cyborg.common import errors, reasons
from cyborg.common.reasons import Reason
from cyborg.db import models
from cyborg.drivers import base, identity
from cyborg.handles import overwriting, release
from cyborg.notifications import notices
from cyborg.programming import matching, operations
from cyborg.states import allocation_states, arq_states, handle_states

LOG = logging.getLogger(__name__)

#: Seconds after which a clean step that goes on counts as one that hangs; a disk takes hours.
_CLEANED_WITHIN = 300
_ERASED_WITHIN = 86_400

#: Seconds that even the attempt at a bind's deadline has.
_LEAST_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepFacts:
    """The ARQ that holds the handle, or has left it, and the step that the handle is due.

    One that has left it is as it was then.
    """

    arq: models.Arq
    handle: models.AttachHandle
    deployable: models.Deployable
    device_uuid: str
    is_disk: bool
    host: str
    host_down: bool
    step: rpc.HostStep
    #: When the database's clock was read for the step, by the monotonic one.
    read_at: float

    @property
    def waited(self) -> float:
        """Seconds since the bind was requested."""
        asked_ms = self.step.asked_ms
        before = asked_ms - (self.arq.bind_started_ms or asked_ms)
        return before / 1000 + time.monotonic() - self.read_at

    def left(self, conf: cfg.ConfigOpts) -> float:
        """Seconds that the bind may still take."""
        return float(conf.conductor.bind_deadline) - self.waited

    def is_overdue(self, conf: cfg.ConfigOpts) -> bool:
        """Whether the bind has had all the time that it may take."""
        return self.left(conf) <= 0


def run(conf: cfg.ConfigOpts, item: work.Item) -> None:
    """Do the step that the handle is due now; nothing if no ARQ holds it and it is clean."""
    known = _read(item.key)
    if known is None:
        return
    item.checkpoint()
    if known.handle.is_left:
        _clean(conf, item, known)
    elif known.arq.state == models.BOUND:
        _prepare_again(conf, item, known)
    else:
        _prepare_in_time(conf, item, known)


def held_on(host: str, *, by_place: bool = False) -> dict[str, str]:
    """The ARQs that have handles of a host, by the uuids of the handles.

    With ``by_place`` it is their instances, by the infos of the handles of functions.
    """
    arq, handle = models.Arq, models.AttachHandle
    of_place = (handle.attach_info, sa.func.coalesce(arq.consumer_uuid, ""))
    query = (
        sa.select(*(of_place if by_place else (handle.uuid, arq.uuid)))
        .join(arq, arq.attach_handle_id == handle.id)
        .join(handle.deployable)
        .join(models.Deployable.device)
        .join(models.Device.host)
        .where(models.Host.name == host)
    )
    if by_place:
        # The place of a mediated device is that of its parent, which no guest has.
        query = query.where(handle.attach_type != "MDEV")
    return dict(db.rows(query))


def _read(handle_uuid: str) -> _StepFacts | None:
    arq, handle = models.Arq, models.AttachHandle
    query = (
        sa.select(
            arq,
            handle,
            models.Deployable,
            models.Device,
            models.ControlPath,
            models.Host.name,
            models.Host.down,
            models.Host.report_started,
            _has_other_holders(handle),
            db.now_ms(),
        )
        .select_from(handle)
        .outerjoin(handle.arq)
        .join(handle.deployable)
        .join(models.Deployable.device)
        .join(models.Device.control_path)
        .join(models.Device.host)
        .where(handle.uuid == handle_uuid, handle.is_kept_beside(arq))
        .options(orm.selectinload(models.Deployable.attributes))
    )
    read_at = time.monotonic()
    with db.reader() as session:
        row = session.execute(query).one_or_none()
    if row is None:
        return None
    user, held, deployable, device, path, host, down, started, card_in_use, now_ms = row
    holder = handle_states.who_left(held) if held.is_left else user
    return _StepFacts(
        arq=holder,
        handle=held,
        deployable=deployable,
        device_uuid=device.uuid,
        is_disk=device.type in base.DISKS,
        host=host,
        host_down=down,
        read_at=read_at,
        step=rpc.HostStep(
            action="clean" if held.is_left else "prepare",
            driver=deployable.driver_name,
            attach_handle_uuid=held.uuid,
            attach_type=held.attach_type,
            attach_info=json.loads(held.attach_info),
            cpid_type=path.cpid_type,
            cpid_info=json.loads(path.cpid_info),
            asked_ms=now_ms,
            agent_started=started,
            arq_uuid=holder.uuid,
            consumer_nqn=holder.consumer_nqn,
            in_use=holder.state == models.BOUND,
            card_in_use=card_in_use,
            # What is programmed may have another product id by now.
            card=identity.of(
                [device.identity], device.vendor, device.std_board_info
            ).to_wire(product=deployable.program_mode is None),
        ),
    )


def _has_other_holders(handle: type[models.AttachHandle]) -> sa.ColumnElement[bool]:
    """Device nodes of the same deployable have holders: the card must not be reset."""
    arq, other = orm.aliased(models.Arq), orm.aliased(models.AttachHandle)
    query = sa.select(other.id).join(arq, arq.attach_handle_id == other.id)
    same = (other.deployable_id == handle.deployable_id, other.id != handle.id)
    query = query.where(*same, handle.attach_type == base.NODES)
    return query.correlate(handle).exists()


def _prepare_in_time(conf: cfg.ConfigOpts, item: work.Item, known: _StepFacts) -> None:
    """Prepare the handle; after the deadline an unexpected exception fails the bind too."""
    try:
        _prepare(conf, item, known)
    except (work.LeaseLost, work.TryLater, errors.DatabaseUnreachable):
        raise
    except Exception as exc:
        if not known.is_overdue(conf):
            raise
        LOG.exception("The bind of ARQ %s failed, and its deadline is over", known.arq.uuid)
        what = f"The handle was not prepared in {known.waited:.0f} s"
        _fail(item, known, _not_ready(what, errors.told(exc)))


def _prepare(conf: cfg.ConfigOpts, item: work.Item, known: _StepFacts) -> None:
    deployable = known.deployable
    try:
        programmed = operations.have_programmed(item, known.arq, deployable.uuid)
    except operations.CannotRun as exc:
        _fail(item, known, exc.reason)
        return
    if not deployable.is_settled or not programmed:
        _await_programming(conf, item, known)
        return
    why_not = matching.why_not_usable(known.arq.request, deployable.record, deployable.facts)
    if why_not:
        _fail(item, known, why_not)
        return
    if known.handle.missing:
        _await_handle(conf, item, known)
        return
    if deployable.prepares:
        _prepare_on_host(conf, item, known)
    else:
        _bound(item, known)


def _ask_host(
    conf: cfg.ConfigOpts, known: _StepFacts, most: float = math.inf
) -> str | None:
    """Have the host do the step, within ``most`` seconds; the access key if it makes one."""
    timeout = min(conf.conductor.host_step_timeout, most)
    return rpc.run_host_step(conf, known.host, known.step, timeout)


def _prepare_on_host(conf: cfg.ConfigOpts, item: work.Item, known: _StepFacts) -> None:
    # An attempt that runs past the deadline would have the consumer told too late. What the host
    # does goes on, and is joined by the next attempt.
    timeout = max(known.left(conf), _LEAST_TIMEOUT)
    try:
        key = _ask_host(conf, known, timeout)
    except rpc.HostStepFailed as exc:
        _fail(item, known, _not_ready("The host could not prepare the handle", exc))
    except rpc.BrokerUnreachable as exc:
        _restart_clock(item, known)
        raise work.TryLater(str(exc)) from exc
    except rpc.HostUnreachable as exc:
        if not known.is_overdue(conf):
            raise work.TryLater(str(exc)) from exc
        what = f"The host did not prepare the handle in {known.waited:.0f} s"
        _fail(item, known, _not_ready(what, f"{known.host}: {exc}"))
    else:
        _bound(item, known, key)


def _prepare_again(conf: cfg.ConfigOpts, item: work.Item, known: _StepFacts) -> None:
    """Give a guest its handle back after its host lost it; the ARQ stays Bound in any case."""
    if not known.deployable.prepares or known.handle.missing:
        return
    if not known.deployable.is_settled:
        raise work.TryLater("The program of the deployable is being put back first.")
    _defer_if_down(known)
    try:
        key = _ask_host(conf, known)
    except (rpc.HostStepFailed, rpc.HostUnreachable) as exc:
        raise work.TryLater(f"The host cannot prepare the handle of a guest again: {exc}") from exc
    _have_read_again(known.host)
    if key is not None:
        _keep_key(item, known, key)


@db.retry
def _have_read_again(host: str) -> None:
    """:func:`_forget_report`, in a transaction that locks nothing else."""
    with db.writer() as session:
        _forget_report(session, host)


def _forget_report(session: orm.Session, host: str) -> None:
    """Have the host's next report read even if it is the same as the one before the step.

    A host that was rebooted has no prepared handle, and says the same as after the reboot before.
    The host is locked before deployables and work, as by whoever applies a report.
    """
    db.update(session, models.Host, models.Host.name == host, report_digest=None)


@db.retry
def _keep_key(item: work.Item, known: _StepFacts, key: str) -> None:
    """Keep the secret that a guest's handle has now: a host that has lost it has made another."""
    with _holding(item, known) as (session, ours):
        arq_states.keep_key(session, key, *ours)


def _await_programming(conf: cfg.ConfigOpts, item: work.Item, known: _StepFacts) -> None:
    """Try later, or fail the bind: after its deadline, or if what was lost cannot be put back."""
    with db.reader() as session:
        present = operations.active_on(session, known.deployable.uuid)
    if present is not None and present.error:
        what = "Its program of before cannot be put back now"
        _fail(item, known, _not_ready(what, present.error))
    elif not known.is_overdue(conf):
        raise work.TryLater("The deployable is being programmed.")
    else:
        what = f"The deployable was not programmed in {known.waited:.0f} s"
        _fail(item, known, _not_ready(what))


def _await_handle(conf: cfg.ConfigOpts, item: work.Item, known: _StepFacts) -> None:
    """Try later, or fail the bind after its deadline: its card has left the bus while written."""
    if not known.is_overdue(conf):
        raise work.TryLater("The host has not shown the handle since its card was written.")
    what = f"The host did not show the handle again in {known.waited:.0f} s"
    _fail(item, known, _not_ready(what))


@db.retry
def _bound(item: work.Item, known: _StepFacts, key: str | None = None) -> None:
    arq = known.arq
    ours, end = _has_it(known), arq_states.BindEnd(arq, handle=_held(known))
    with db.writer() as session:
        if arq.allocation_uuid:
            # First, as whoever releases it does. So one of its binds sees that it is the last.
            allocation_states.find_locked(session, arq.allocation_uuid)
        _forget_report(session, known.host)
        is_programmable = known.deployable.program_mode is not None
        group, uuid = arq.request, known.deployable.uuid
        if is_programmable and not matching.lock_if_serving(session, group, uuid):
            raise work.TryLater("The program of the deployable has changed meanwhile.")
        work.hold(session, item)
        values = {"state_reason": None, "needs_write": False, "access_key": key}
        if arq_states.enter(session, models.BOUND, *ours, **values):
            if arq.allocation_uuid:
                allocation_states.activate(session, arq.allocation_uuid)
            arq_states.end_binds(session, [end], tell_consumer=not arq.allocation_uuid)
            work.finish_with(session, item)
            LOG.info("ARQ %s is Bound: its handle is prepared", arq.uuid)


def _not_ready(what: str, detail: object = None) -> Reason:
    if detail is None:
        return Reason(reasons.NOT_READY, f"{what}.")
    return Reason.of(reasons.NOT_READY, what, detail)


@db.retry
def _fail(item: work.Item, known: _StepFacts, reason: Reason) -> None:
    """BindFailed; the handle is cleaned before another ARQ may have it."""
    handle = known.handle
    with _holding(item, known) as (session, ours):
        # Read again: a write that has begun since the step was read may have been for it.
        arq = session.scalar(sa.select(models.Arq).where(*ours).with_for_update())
        if arq is None:
            return
        end = arq_states.BindEnd(arq, reason, _held(known))
        if arq_states.end_binds(session, [end], attach_handle_id=None, needs_write=False):
            left = handle_states.Leaving(handle.id, arq, handle_states.Event.LEFT)
            handle_states.leave(session, [left])
            work.want(session, work.HOST_STEP, [item.key])
            work.want(session, work.PLACEMENT, [known.host])


@contextlib.contextmanager
def _holding(
    item: work.Item, known: _StepFacts
) -> Iterator[tuple[orm.Session, tuple[sa.ColumnElement[bool], ...]]]:
    """A transaction that has the step locked, and :func:`_has_it`."""
    with work.holding(item) as session:
        yield session, _has_it(known)


def _has_it(known: _StepFacts) -> tuple[sa.ColumnElement[bool], ...]:
    """The ARQ, unless it has left the handle: it may be in the same state again with another."""
    arq = models.Arq
    return arq.uuid == known.arq.uuid, arq.attach_handle_id == known.handle.id


def _held(known: _StepFacts) -> notices.Handle:
    handle = known.handle
    return notices.Handle(handle.uuid, handle.attach_type, known.device_uuid)


@db.retry
def _restart_clock(item: work.Item, known: _StepFacts) -> None:
    with _holding(item, known) as (session, ours):
        arq_states.restart_clocks(session, *ours)


def _clean(conf: cfg.ConfigOpts, item: work.Item, known: _StepFacts) -> None:
    deployable, missing = known.deployable, known.handle.missing
    if known.handle.is_to_overwrite and deployable.blank_image is not None:
        _overwrite(item, known)
    is_due = deployable.cleans and (deployable.clean_erases or not missing)
    # A missing handle needs no cleaning, unless what a guest wrote to it may come back with it, or
    # [cleaning] requires that it is clean.
    if is_due:
        if not deployable.is_settled and not missing:
            raise work.TryLater("The deployable is being written; the handle is cleaned then.")
        _defer_if_down(known)
        try:
            _ask_host(conf, known)
        except rpc.HostStepFailed as exc:
            _note_unclean(item, known, str(exc))
            raise work.TryLater(f"Cannot clean the handle: {exc}") from exc
        except rpc.HostUnreachable as exc:
            if why := _why_unclean(known, exc):
                _note_unclean(item, known, why)
            raise work.TryLater(f"Cannot clean the handle: {exc}") from exc
    _release(item, known, cleaned=is_due)


def _why_unclean(known: _StepFacts, exc: rpc.HostUnreachable) -> str | None:
    """Why a handle is unclean whose host has not said that; None if there is still hope."""
    # That nothing can be asked at all is no failure.
    if isinstance(exc, rpc.BrokerUnreachable):
        return None
    if not isinstance(exc, rpc.HostStepRunning):
        return f"Host {known.host} does not answer: {exc}"
    seconds = exc.seconds or 0
    if seconds < (_ERASED_WITHIN if known.is_disk else _CLEANED_WITHIN):
        return None
    return f"It has not ended for {seconds // 60} minutes: {exc}"


def _overwrite(item: work.Item, known: _StepFacts) -> None:
    """Return when what the guest may have left in the deployable is overwritten.

    :raises TryLater: it is not yet
    """
    _defer_if_down(known)
    waits = overwriting.why_not_done(item, known.handle.uuid, known.deployable.uuid)
    if waits is None:
        return
    if not waits.is_failure:
        raise work.NotYet(waits.reason)
    _note_unclean(item, known, waits.reason)
    raise work.TryLater(f"Cannot clean the handle: {waits.reason}")


@db.retry
def _note_unclean(item: work.Item, known: _StepFacts, reason: str) -> None:
    arq, handle = known.arq, known.handle
    LOG.warning("Attach handle %s is not clean, and given to nobody: %s", handle.uuid, reason)
    with _holding_left(item, known) as (session, left):
        for each in left:
            failed = handle_states.Event.FAILED
            handle_states.change(session, failed, _HANDLE.id == each.id, left_reason=reason)
            history.note_unclean(session, arq, each.uuid, known.device_uuid, reason)


_HANDLE = models.AttachHandle


@contextlib.contextmanager
def _holding_left(
    item: work.Item, known: _StepFacts
) -> Iterator[tuple[orm.Session, list[models.AttachHandle]]]:
    """A transaction that has the step, and the handle, locked.

    None if it was given up: another guest may have it now.
    """
    handle = known.handle
    same = (_HANDLE.id == handle.id, _HANDLE.left_arq == handle.left_arq)
    with work.holding(item) as session:
        yield session, handle_states.lock_left(session, *same, _HANDLE.left_ms == handle.left_ms)


def _defer_if_down(known: _StepFacts) -> None:
    """Do not ask a host that is down for a step that is not urgent.

    Each such call would hold up a thread for seconds, and a host may have died with many guests.

    :raises TryLater: the host is down
    """
    if known.host_down:
        raise work.TryLater(f"Host {known.host} is down; its agent is asked when it reports.")


@db.retry
def _release(item: work.Item, known: _StepFacts, *, cleaned: bool) -> None:
    with _holding_left(item, known) as (session, left):
        for handle in left:
            release.finish_cleaning(session, handle, known.arq if cleaned else None)
