# SPDX-License-Identifier: Apache-2.0
"""Deletes orphaned ARQs: those never bound, and those of instances that Nova has deleted.

Nova deletes an instance's ARQs, but its request may get lost. Each ARQ keeps when Nova was last
asked for its instance, and since when Nova does not know the instance. So the grace period
outlives every conductor, and starts with the first answer that the instance does not exist. There
is none if :mod:`.lost_allocations` has found that Placement does not know the instance either.

In either case :mod:`.safeguards` is asked first. What Placement does not know, and Nova says that
it has deleted, is released at once, however much it is: two books that each had it say so.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg
from oslo_db import exception as db_exc
from sqlalchemy import orm

from cyborg import db, nova, work
from cyborg.audits import safeguards
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import release
from cyborg.peers import clients
from cyborg.states import arq_states

LOG = logging.getLogger(__name__)

_ARQ = models.Arq

#: ARQs that are deleted in one transaction because they were never bound.
_EXPIRY_BATCH = 500

#: Instances that Nova is asked for before the answers are recorded.
_BATCH = 100

#: Key of the one row of work by which Nova is asked.
KEY = "nova"


def delete_expired(conf: cfg.ConfigOpts) -> None:
    """Delete the Initial ARQs that are older than ``[conductor] arq_expiry``."""
    seconds = conf.conductor.arq_expiry
    if not seconds:
        return
    old = (
        models.Arq.state == models.INITIAL,
        # An allocation binds its own, however long that takes.
        models.Arq.allocation_uuid.is_(None),
        models.Arq.created_at < models.utcnow() - datetime.timedelta(seconds=seconds),
    )
    expired = db.change_due(models.Arq, *old, limit=_EXPIRY_BATCH, change=release.delete)
    if expired:
        LOG.info("Deleted %d ARQs that nobody had bound in %d s", len(expired), seconds)


def check_region(conf: cfg.ConfigOpts) -> None:
    """Log an error if ``[nova]`` is not the Nova whose instances have accelerators.

    For the start of a conductor. Until that is mended, no instance counts as gone.
    """
    if not _is_asked(conf):
        return
    if other := nova.why_other_region(conf):
        LOG.error("Nova is not asked which instances are gone: %s; mend the wrong one", other)
        return
    try:
        found = [nova.is_there(conf, instance) for instance in safeguards.recent()]
    except errors.DatabaseUnreachable:
        LOG.debug("Nobody knows yet whether [nova] is the right one")
        return
    except (ka_exc.ClientException, errors.CyborgError, db_exc.DBError) as exc:
        LOG.warning("Nobody knows yet whether [nova] is the right one: %s", exc)
        return
    if found and not any(known is not False for known in found):
        LOG.error(
            "Nova has none of %d instances with accelerators. Check region_name and "
            "endpoint_override of [nova]; until it has one, accelerators are only released of "
            "instances that it says it has deleted",
            len(found),
        )


def _is_asked(conf: cfg.ConfigOpts) -> bool:
    return bool(conf.conductor.instance_audit_interval) and clients.configured(conf, "nova")


def want_check(conf: cfg.ConfigOpts) -> None:
    """Want Nova to be asked for instances, if it is time and that is not wanted already."""
    interval = conf.conductor.instance_audit_interval
    if _is_asked(conf) and not nova.why_other_region(conf) and _next(interval, limit=1):
        work.want_once(work.INSTANCES, KEY)


def _next(interval: float, limit: int) -> list[str]:
    """Instances that Nova was last asked for ``interval`` seconds ago, ``limit`` at most."""
    query = (
        sa.select(_ARQ.consumer_uuid)
        .where(_ARQ.instance_asked_ms < _before(interval), _ARQ.consumer_uuid.is_not(None))
        .order_by(_ARQ.instance_asked_ms)
        .limit(limit)
    )
    return list(dict.fromkeys(uuid for uuid in db.read_all(query) if uuid))


def _before(seconds: float) -> sa.ColumnElement[int]:
    return db.now_ms() - round(seconds * 1000)


def check_instances(conf: cfg.ConfigOpts, item: work.Item) -> None:
    """Ask Nova for every instance that is due: the handler of ``instances/nova``.

    :raises MayNotLook: Nova does not let Cyborg see whether an instance is gone
    :raises keystoneauth1.exceptions.ClientException: Nova cannot be reached, or did not answer for
        an instance; the next attempt begins with another one
    """
    interval = conf.conductor.instance_audit_interval
    brake = _ReleaseBrake()
    try:
        while interval and (asked := _next(interval, _BATCH)):
            answers = _ask(conf, item, asked)
            overdue = _record(item, answers, conf.conductor.instance_grace)
            brake.seen_alive = brake.seen_alive or answers.seen_alive
            if overdue and not brake.seen_alive:
                brake.seen_alive = safeguards.is_one_alive(conf, item.checkpoint)
            _release(conf, item, overdue, brake)
            if answers.failure is not None:
                raise answers.failure
    finally:
        brake.tell()


def _release(
    conf: cfg.ConfigOpts, item: work.Item, overdue: Iterable[str], brake: _ReleaseBrake
) -> None:
    for instance in overdue:
        item.checkpoint()
        is_deleted = nova.has_deleted(conf, instance)
        if not brake.seen_alive and not is_deleted:
            brake.unsure += 1
        elif not _delete(conf, instance, is_deleted=is_deleted):
            brake.too_many += 1


@dataclass(slots=True)
class _ReleaseBrake:
    """Brake that keeps a round from releasing everything, as where Nova is of another region."""

    #: Whether Nova has been seen to have any instance with accelerators.
    seen_alive: bool = False
    #: Overdue instances that were not released: Nova may be the wrong one, or there are too many.
    unsure: int = 0
    too_many: int = 0

    def tell(self) -> None:
        """Log what was kept."""
        if self.unsure:
            LOG.error(
                "Nova has none of the instances with accelerators that it was asked for, so %d "
                "that it does not say it has deleted keep theirs. Check region_name and "
                "endpoint_override of [nova]; if they are gone, delete their accelerator requests",
                self.unsure,
            )
        if self.too_many:
            LOG.error(
                "%d more instances have been gone from Nova for long than are released at a time; "
                "see [conductor] max_instance_releases",
                self.too_many,
            )


@dataclass(slots=True)
class _NovaAnswers:
    """Nova's answers: the instances that it was asked for, and those it does not have."""

    asked: list[str] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    #: Whether it has one of them.
    seen_alive: bool = False
    #: Why there is no answer for the last one.
    failure: ka_exc.ClientException | None = None


def _ask(conf: cfg.ConfigOpts, item: work.Item, instances: Iterable[str]) -> _NovaAnswers:
    answers = _NovaAnswers()
    for instance in instances:
        item.checkpoint()
        answers.asked.append(instance)
        try:
            found = nova.is_there(conf, instance)
            answers.seen_alive = answers.seen_alive or bool(found)
            if found is False:
                answers.gone.add(instance)
        except ka_exc.ClientException as exc:
            answers.failure = exc
            break
    return answers


@db.retry
def _record(item: work.Item, answers: _NovaAnswers, grace: float) -> list[str]:
    """Record the answers; return the instances whose ARQs are to be deleted."""
    gone = _ARQ.consumer_uuid.in_(answers.gone)
    silent = _ARQ.consumer_uuid.in_(answers.asked[-1:] if answers.failure else [])
    since = sa.case(
        (gone, sa.func.coalesce(_ARQ.instance_missed_ms, db.now_ms())),
        (silent, _ARQ.instance_missed_ms),
        else_=None,
    )
    values = {"instance_asked_ms": db.now_ms(), "instance_missed_ms": since}
    overdue = sa.select(_ARQ.consumer_uuid).where(_is_overdue(grace), gone).distinct()
    with work.holding(item) as session:
        arq_states.note(session, _ARQ.consumer_uuid.in_(answers.asked), **values)
        return [uuid for uuid in session.scalars(overdue) if uuid is not None]


def _is_overdue(grace: float) -> sa.ColumnElement[bool]:
    """Nova has not known the instance for ``grace`` seconds, or Placement does not either."""
    both = sa.and_(_ARQ.instance_missed_ms.is_not(None), _ARQ.allocation_missed_ms.is_not(None))
    return sa.or_(_ARQ.instance_missed_ms < _before(grace), both)


def _delete(conf: cfg.ConfigOpts, instance: str, *, is_deleted: bool) -> bool:
    """Delete the ARQs of an instance that is gone; False if there were too many.

    One without an allocation does not count if Nova says that it has deleted it.
    """
    grace = conf.conductor.instance_grace
    ours = (models.Arq.consumer_uuid == instance, _is_overdue(grace))
    arqs = safeguards.release_arqs(
        conf, *ours, counts=lambda found: not (is_deleted and _is_unclaimed(found))
    )
    if arqs:
        since = "and has no allocation" if _is_unclaimed(arqs) else f"for more than {grace:.0f} s"
        uuids = ", ".join(found.uuid for found in arqs)
        LOG.warning("Instance %s is gone from Nova %s: released ARQs %s", instance, since, uuids)
    return arqs is not None


def _is_unclaimed(arqs: Iterable[models.Arq]) -> bool:
    return all(found.allocation_missed_ms is not None for found in arqs)


def count_held_back(session: orm.Session, conf: cfg.ConfigOpts) -> int:
    """The instances that were overdue when Nova was asked last, and still have their ARQs."""
    if not _is_asked(conf):
        return 0
    asked_ms = _ARQ.instance_asked_ms
    overdue = sa.or_(
        _ARQ.instance_missed_ms < asked_ms - conf.conductor.instance_grace * 1000,
        _ARQ.allocation_missed_ms <= asked_ms,
    )
    query = sa.select(sa.func.count(_ARQ.consumer_uuid.distinct()))
    return session.scalar(query.where(_ARQ.instance_missed_ms.is_not(None), overdue)) or 0
