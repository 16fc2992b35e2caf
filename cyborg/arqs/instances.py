# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests of instances that Nova has no more: its DELETE never came, or got lost.

Each request knows when Nova was last asked for its instance, and since when Nova has not known it.
So the grace period outlives every conductor, and an instance that was never asked for in vain has
none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import sqlalchemy as sa
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg import clients, db, nova, work
from cyborg.arqs import release, states
from cyborg.db import models

LOG = logging.getLogger(__name__)

#: Requests whose instances are asked for before the answers are recorded.
_BATCH = 100

#: Of the one row of work that has Nova asked.
KEY = "nova"


def look(conf: cfg.ConfigOpts) -> None:
    """Want Nova to be asked for instances, where it is time and that is not wanted already."""
    interval = conf.conductor.instance_audit_interval
    if interval and clients.configured(conf, "nova") and _next(interval, limit=1):
        work.want_once(work.INSTANCES, KEY)


@db.retry
def _next(interval: float, limit: int) -> list[str]:
    """Some of the instances that have not been asked for the longest time, but too long."""
    arq = models.Arq
    query = (
        sa.select(arq.instance_uuid)
        .where(arq.instance_asked_ms < _before(interval), arq.instance_uuid.is_not(None))
        .order_by(arq.instance_asked_ms)
        .limit(limit)
    )
    with db.reader() as session:
        return list(dict.fromkeys(uuid for uuid in session.scalars(query) if uuid))


def _before(seconds: float) -> sa.ColumnElement[int]:
    return db.now_ms() - round(seconds * 1000)


def ask_nova(conf: cfg.ConfigOpts, claim: work.Claim) -> None:
    """Ask for every instance whose turn it is: the handler of ``instances/nova``.

    :raises MayNotLook: Nova does not let us see whether an instance is gone
    :raises keystoneauth1.exceptions.ClientException: Nova cannot be reached, or is silent about an
        instance, which says nothing; the next attempt begins with another one
    """
    interval = conf.conductor.instance_audit_interval
    while interval and (asked := _next(interval, _BATCH)):
        answers = _ask(conf, claim, asked)
        for instance in _record(claim, answers, conf.conductor.instance_grace):
            claim.checkpoint()
            _release(instance, conf.conductor.instance_grace)
        if answers.failure is not None:
            raise answers.failure


@dataclass(slots=True)
class _Answers:
    """What Nova has said: the instances that it was asked for, and those it does not have."""

    asked: list[str] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    #: Why there is no answer about the one asked for last.
    failure: ka_exc.ClientException | None = None


def _ask(conf: cfg.ConfigOpts, claim: work.Claim, instances: Iterable[str]) -> _Answers:
    answers = _Answers()
    for instance in instances:
        claim.checkpoint()
        answers.asked.append(instance)
        try:
            if nova.is_gone(conf, instance):
                answers.gone.add(instance)
        except ka_exc.ClientException as exc:
            answers.failure = exc
            break
    return answers


@db.retry
def _record(claim: work.Claim, answers: _Answers, grace: float) -> list[str]:
    """Keep what Nova said; the instances that have been gone for longer than the grace period."""
    arq = models.Arq
    gone = arq.instance_uuid.in_(answers.gone)
    silent = arq.instance_uuid.in_(answers.asked[-1:] if answers.failure else [])
    since = sa.case(
        (gone, sa.func.coalesce(arq.instance_missed_ms, db.now_ms())),
        (silent, arq.instance_missed_ms),
        else_=None,
    )
    values = {
        "instance_asked_ms": db.now_ms(),
        "instance_missed_ms": since,
        # Nothing that anybody sees has changed.
        "updated_at": arq.updated_at,
    }
    overdue = sa.select(arq.instance_uuid).where(_is_overdue(grace), gone)
    with db.writer() as session:
        work.hold(session, claim)
        db.update(session, arq, arq.instance_uuid.in_(answers.asked), **values)
        return [uuid for uuid in session.scalars(overdue.distinct()) if uuid]


def _is_overdue(grace: float) -> sa.ColumnElement[bool]:
    return models.Arq.instance_missed_ms < _before(grace)


@db.retry
def _release(instance: str, grace: float) -> None:
    """Delete the requests of an instance that is gone, as Nova's own DELETE would have done."""
    arq = models.Arq
    still = (arq.instance_uuid == instance, arq.state != states.DELETING, _is_overdue(grace))
    query = sa.select(arq).where(*still).order_by(arq.id).with_for_update()
    with db.writer() as session:
        arqs = list(session.scalars(query))
        release.delete(session, arqs)
    if arqs:
        LOG.warning(
            "Instance %s has been gone from Nova for more than %d s: released its ARQs %s",
            instance,
            grace,
            [found.uuid for found in arqs],
        )
