# SPDX-License-Identifier: Apache-2.0
"""Safeguards of accelerators against giving them up because the wrong Nova was asked.

A Nova of another region has none of the instances, and so has one that was restored from a backup.
So before anything is given up, Nova must have another instance with accelerators, or say that it
has deleted this one; and of those that it does not say this of, few are given up at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, nova
from cyborg.db import models
from cyborg.handles import release

#: Instances that Nova is asked for once more before any is released, until it has one.
_WITNESSES = 20

#: Name of the brake on what is released.
_RELEASES = "instances"


def instances_claim(conf: cfg.ConfigOpts) -> bool:
    """Whoever has an ARQ is an instance of this Nova, and claims in Placement."""
    options = conf.conductor
    return bool(options.allocation_audit_interval and options.instance_audit_interval)


def is_one_alive(conf: cfg.ConfigOpts, before_each: Callable[[], None]) -> bool:
    """Nova has one of the instances that were not missing when it was last asked."""
    for instance in recent():
        before_each()
        if nova.is_there(conf, instance):
            return True
    return False


def once(conf: cfg.ConfigOpts) -> Callable[[], bool]:
    """:func:`is_one_alive` for many answers in a row: Nova is asked for the first of them only."""
    return functools.cache(lambda: is_one_alive(conf, lambda: None))


def recent() -> list[str]:
    """Some instances with ARQs that were not missing when Nova was last asked."""
    arq = models.Arq
    query = sa.select(arq.consumer_uuid).where(
        arq.consumer_uuid.is_not(None),
        arq.instance_missed_ms.is_(None),
        arq.allocation_uuid.is_(None),
    )
    found = db.read_all(query.order_by(arq.instance_asked_ms.desc()).limit(_WITNESSES))
    return list(dict.fromkeys(uuid for uuid in found if uuid))


@db.retry
def release_arqs(
    conf: cfg.ConfigOpts,
    *which: sa.ColumnElement[bool],
    counts: Callable[[Sequence[models.Arq]], bool],
) -> Sequence[models.Arq] | None:
    """Delete ARQs of an instance that is gone, as a DELETE from Nova does.

    None if that ``counts`` and as many as may be in one period have been released already.
    """
    query = sa.select(models.Arq).where(*which).order_by(models.Arq.id).with_for_update()
    with db.writer() as session:
        arqs = session.scalars(query).all()
        if arqs and counts(arqs) and not _may_release(session, conf):
            return None
        release.delete(session, arqs)
    return arqs


@db.retry
def may_drop(conf: cfg.ConfigOpts) -> bool:
    """One more allocation may be removed, and is counted."""
    with db.writer() as session:
        return _may_release(session, conf)


def _may_release(session: orm.Session, conf: cfg.ConfigOpts) -> bool:
    """Count one more release, unless there were too many since the present period began.

    In the database, since a round that fails is tried again, by other conductors too.
    """
    row, own = models.Brake, models.Brake.name == _RELEASES
    new = {"name": _RELEASES, "began_ms": db.now_ms(), "used": 0, "created_at": models.utcnow()}
    db.upsert(session, row, [new], key=["name"], update={"name": _RELEASES})
    over = row.began_ms < db.now_ms() - conf.conductor.instance_audit_interval * 1000
    db.update(session, row, own, over, began_ms=db.now_ms(), used=0)
    left = row.used < conf.conductor.max_instance_releases
    return db.update(session, row, own, left, used=row.used + 1) > 0
